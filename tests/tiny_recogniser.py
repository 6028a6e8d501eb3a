"""A recogniser whose text is a property of the samples, with every fault that a real one may have."""

import time

import numpy as np


class WaveText:
    """Says length and loudness of each waveform.

    Args:
        sleep_s: what an utterance takes.
        memory: samples that a batch may have, padding included; 0: any number.
        fault: `loud` raises on an utterance with a sample above 0.9, `all` on every one; `leaves` ends the process.
    """

    VERSION = 1
    sampling_rate = 8000

    def __init__(self, device="cpu", sleep_s=0.0, memory=0, fault="", noise=0.0, weights=None):
        self.sleep_s, self.memory, self.fault, self.noise = sleep_s, memory, fault, noise

    def recognise(self, waves, options):
        time.sleep(self.sleep_s * len(waves))
        if self.memory and len(waves) * max(map(len, waves)) > self.memory:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.fault == "leaves":
            raise SystemExit(0)
        if self.fault == "all":
            raise AttributeError("no such thing as a beam")
        if self.fault == "loud" and any(np.abs(wave).max() > 0.9 for wave in waves):
            raise ValueError("much too loud\nreally")
        noise = self.noise * len(waves)  # what the size of a batch does to the last bits
        return [
            [
                (
                    f"beam {options.beam}\n length  {len(w)} loud {round(100 * float(np.abs(w).max()))}",
                    -len(w) / 77 + noise,
                )
            ]
            if len(w) >= 200
            else []
            for w in waves
        ]
