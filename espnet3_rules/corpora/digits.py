"""The embedded corpus: strings of one to seven English digits, spoken by espeak-ng out of the espeakng-loader wheel.

Everything about an utterance is drawn from (seed, split, index), and espeak-ng starts afresh for each, so that the
recordings are the same bytes for any number of processes and after any kill.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import Utterance, make_cuts
from espnet3_rules.errors import EnvironmentProblem, OptionError
from espnet3_rules.options import opt
from espnet3_rules.records import content_key, write_aside

if TYPE_CHECKING:
    import numpy as np
    from lhotse import MonoCut

#: Raise it where the same options and seed give other recordings: the old ones are then left alone.
VERSION = 1

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_LONGEST = 7

# Voices are a base (the accent) and a variant (the speaker). What sounds like a machine is left out: echoes, the
# klatt synthesisers, whispering. Variants of one name (iven, iven2) are near alike, so they stay on one side.
SEEN_BASES = ("en", "en-029", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us", "en-us-nyc")
UNSEEN_BASES = ("en-gb-scotland", "en-gb-x-rp")
# fmt: off
SEEN_VARIANTS = (
    "Alex", "Alicia", "Andrea", "Andy", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Jacky", "Marco", "Mario",
    "Michael", "Mike", "Nguyen", "antonio", "belinda", "boris", "ed", "f1", "f2", "f3", "f5", "grandma", "grandpa",
    "gustave", "ian", "iven2", "iven4", "john", "linda", "m1", "m2", "m4", "m5", "m6", "m8", "marcelo", "max", "michel",
    "miguel", "norbert", "pablo", "quincy", "rob", "robert", "sandro", "steph", "steph2", "steph3", "travis",
)
# fmt: on
UNSEEN_VARIANTS = ("Annie", "Lee", "aunty", "f4", "m3", "m7", "paul", "pedro", "shelby", "victor")


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """Size and variety of the spoken digit strings."""

    train: int = opt(4000, "utterances in split train", minimum=1)
    valid: int = opt(200, "utterances in split valid", minimum=1)
    test_seen: int = opt(320, "utterances in split test_seen: voices of train, other strings", minimum=1)
    test_unseen: int = opt(320, "utterances in split test_unseen: other voices, other strings", minimum=1)
    sampling_rate: int = opt(16000, "of the recordings, in Hz", minimum=4000, maximum=48000)
    rate: tuple[int, ...] = opt((130, 220), "slowest and fastest speech, in words a minute", minimum=80, maximum=450)
    pitch: tuple[int, ...] = opt((30, 70), "lowest and highest pitch, of espeak-ng's 0 to 100", minimum=0, maximum=100)
    pause_s: float = opt(
        0.3, "longest pause between two digits in seconds; half of them have none", minimum=0, maximum=5
    )
    snr_db: tuple[float, ...] = opt((15.0, 40.0), "loudest and faintest noise, as signal-to-noise ratio in dB")

    def check(self) -> None:
        """Ranges are two numbers in order."""
        for name in ("rate", "pitch", "snr_db"):
            values = getattr(self, name)
            if len(values) != 2 or values[0] > values[1]:
                raise OptionError(f"{name}: expected the least and the most, found {list(values)}")

    def sources(self, split: str) -> list[Path]:
        """The files that describe a split: none, for the audio is made here."""
        del split
        return []

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are."""
        return ("train", "valid", "test_seen", "test_unseen")


@dataclasses.dataclass(frozen=True)
class Spoken:
    """All that determines one recording."""

    path: Path
    digits: str
    voice: str
    rate: int
    pitch: int
    intonation: int
    #: Pause after each digit in ms; the last is not used.
    pauses_ms: tuple[int, ...]
    #: Silence before and after the speech in seconds.
    margins_s: tuple[float, float]
    snr_db: float
    #: Of the one-pole filter that colours the noise: 0 is white, towards 1 is dull.
    noise_colour: float
    noise_seed: int
    sampling_rate: int

    @property
    def text(self) -> str:
        """What is said."""
        return " ".join(DIGITS[int(digit)] for digit in self.digits)


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The split's cuts in order, speaking what is not yet spoken into ``work.audio_dir``.

    Raises:
        EnvironmentProblem: espeakng-loader is not installed, or does not work here.
    """
    folder = work.audio_dir / f"digits-{_audio_key(options, work.seed)}" / split
    spoken = [_draw(options, split, i, work.seed, folder) for i in range(getattr(options, split))]
    for _ in work.parallel_map(record, spoken):
        pass
    utterances = [
        Utterance(
            id=one.path.stem,
            audio=str(one.path),
            text=one.text,
            where=str(one.path),
            speaker=one.voice,
            language="English",
        )
        for one in spoken
    ]
    return make_cuts(utterances, work, "digits")


def _audio_key(options: Options, seed: int) -> str:
    """Twelve hexadecimal digits over all that the recordings depend on; how many there are is not part of it."""
    try:
        engine = metadata.version("espeakng-loader")
    except metadata.PackageNotFoundError as error:
        raise EnvironmentProblem(
            "corpus digits: espeakng-loader is not installed, and it is what speaks",
            hint="pip install 'espnet3-rules[demo]'",
        ) from error
    values = {name: value for name, value in options.to_dict().items() if name not in options.splits}
    return content_key([VERSION, engine, seed, values])[:12]


def _draw(options: Options, split: str, index: int, seed: int, folder: Path) -> Spoken:
    draw = random.Random(f"{seed}/{split}/{index}")
    unseen = split == "test_unseen"
    digits = ""
    while not digits or string_side(digits) != split.split("_")[0]:
        digits = "".join(draw.choices("0123456789", k=draw.randint(1, _LONGEST)))
    base = draw.choice(UNSEEN_BASES if unseen else SEEN_BASES)
    variant = draw.choice(UNSEEN_VARIANTS if unseen else SEEN_VARIANTS)
    return Spoken(
        path=folder / f"{split}-{index:05d}.wav",
        digits=digits,
        voice=f"{base}+{variant}",
        rate=draw.randint(*options.rate),
        pitch=draw.randint(*options.pitch),
        intonation=draw.randint(20, 80),
        pauses_ms=tuple(int(1000 * options.pause_s * max(0.0, draw.uniform(-1, 1))) for _ in digits),
        margins_s=(draw.uniform(0.05, 0.25), draw.uniform(0.05, 0.25)),
        snr_db=draw.uniform(*options.snr_db),
        noise_colour=draw.uniform(0, 0.95),
        noise_seed=draw.getrandbits(64),
        sampling_rate=options.sampling_rate,
    )


def string_side(digits: str) -> str:
    """To which of train, valid and test a string belongs: none of one is ever spoken in another."""
    bucket = zlib.crc32(digits.encode()) % 10
    return {0: "test", 3: "test", 7: "valid"}.get(bucket, "train")  # each has strings of one digit


def record(spoken: Spoken) -> None:
    """Makes the utterance's recording, if it is not there yet."""
    import soundfile

    if spoken.path.exists():  # written aside and renamed, so it is whole
        return
    samples = _with_noise(spoken, _speak(spoken))
    with write_aside(spoken.path, "wb") as stream:
        soundfile.write(stream, samples, spoken.sampling_rate, format="WAV", subtype="PCM_16")


def _with_noise(spoken: Spoken, speech: np.ndarray) -> np.ndarray:
    """The speech (float32, at espeak-ng's rate) at the wanted rate, between its margins, with noise, never clipped."""
    import numpy as np
    import scipy.signal

    speech = scipy.signal.resample_poly(speech, spoken.sampling_rate, _ESPEAK_RATE)
    before, after = (round(margin * spoken.sampling_rate) for margin in spoken.margins_s)
    noise = np.random.default_rng(spoken.noise_seed).standard_normal(before + len(speech) + after)
    noise = scipy.signal.lfilter([1.0], [1.0, -spoken.noise_colour], noise)
    level = np.std(speech) * 10 ** (-spoken.snr_db / 20)
    samples = noise * (level / np.std(noise))
    samples[before : before + len(speech)] += speech
    return (samples / max(1.0, np.abs(samples).max() / 0.99)).astype(np.float32)


# espeak-ng through ctypes; names and numbers are those of its speak_lib.h, version 1.52.

_ESPEAK_RATE = 22050  # of what it speaks, in Hz
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8, _SSML = 1, 0x10
_RATE, _PITCH, _RANGE = 1, 3, 4
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def _speak(spoken: Spoken) -> np.ndarray:
    """The speech as float32 between -1 and 1 at 22050 Hz, without the silence around it."""
    import _ctypes  # for dlclose, which ctypes itself does not offer

    import espeakng_loader
    import numpy as np

    chunks: list[bytes] = []

    def collect(samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            chunks.append(ctypes.string_at(samples, 2 * count))
        return 0  # go on

    callback = _CALLBACK(collect)
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    try:
        rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, str(espeakng_loader.get_data_path()).encode(), 0)
        _expect(spoken, "espeak_Initialize", rate, _ESPEAK_RATE)
        library.espeak_SetSynthCallback(callback)
        library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # otherwise the time of day
        _expect(spoken, "espeak_SetVoiceByName", library.espeak_SetVoiceByName(spoken.voice.encode()), 0)
        for parameter, value in ((_RATE, spoken.rate), (_PITCH, spoken.pitch), (_RANGE, spoken.intonation)):
            _expect(spoken, "espeak_SetParameter", library.espeak_SetParameter(parameter, value, 0), 0)
        text = _ssml(spoken).encode()
        code = library.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 0, 0, _CHARS_UTF8 | _SSML, None, None)
        _expect(spoken, "espeak_Synth", code, 0)
        library.espeak_Terminate()
    finally:
        # Flutter and noise go on from one utterance to the next in the library's own variables, and neither its
        # seed nor espeak_Terminate resets them; loading it anew does, in 2 ms.
        _ctypes.dlclose(library._handle)
    speech = np.frombuffer(b"".join(chunks), np.int16).astype(np.float32) / 32768
    loud = np.flatnonzero(np.abs(speech) > 0.002)
    if not len(loud):
        raise EnvironmentProblem(f"espeak-ng said nothing for {spoken.text!r} with voice {spoken.voice}")
    return speech[loud[0] : loud[-1] + 1]


def _ssml(spoken: Spoken) -> str:
    words = spoken.text.split()
    pauses = [f' <break time="{ms}ms"/> ' if ms else " " for ms in spoken.pauses_ms[: len(words) - 1]]
    return "<speak>" + "".join(word + pause for word, pause in zip(words, [*pauses, ""], strict=True)) + "</speak>"


def _expect(spoken: Spoken, call: str, found: int, expected: int) -> None:
    if found != expected:
        raise EnvironmentProblem(
            f"espeak-ng: {call} answered {found}, expected {expected} (voice {spoken.voice})",
            hint="the corpus is made with espeakng-loader 0.2.4: pip install 'espnet3-rules[demo]'",
        )
