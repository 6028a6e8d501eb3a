"""From "this text is in that file" to cuts: audio headers are read on all cores, and unreadable audio is kept.

An utterance whose audio is missing, empty or no audio stays in the manifest, marked: it must come out of decoding
as failed and be counted, not vanish. Only when no utterance of a split can be read is that an error.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from espnet3_rules.corpora import Work
from espnet3_rules.corpora.reading import shown
from espnet3_rules.errors import DataError
from espnet3_rules.manifest import UNREADABLE

if TYPE_CHECKING:
    from lhotse import MonoCut

log = logging.getLogger(__name__)

#: Length given to an utterance of which nothing is known, in seconds: it must be above 0, and cost next to nothing.
NOMINAL_S = 0.01
#: Sampling rate written for audio that cannot be read, in Hz.
NOMINAL_RATE = 16000
#: How far a region may reach beyond the end of its audio, in seconds; it is then cut short. Kaldi's
#: extract-segments takes the same figure; beyond it the two do not belong together.
OVERSHOOT_S = 0.5
#: Below this many files, starting processes takes longer than reading the headers.
FEW = 200
#: What `probe` says of a file that is not there.
MISSING = "no such file"
#: Sampling rates that audio can have, in Hz: resampling from any other would take gigabytes, or give nothing.
RATES = (100, 1_000_000)
#: The highest channel, from 0: libsndfile reads no more.
MAX_CHANNEL = 1023
#: The longest offset or duration, in seconds (30 years): number of samples and milliseconds stay exact.
MAX_S = 1e9
_UNKNOWN_LENGTH = 1 << 62


@dataclasses.dataclass(frozen=True)
class Utterance:
    """What a corpus says of an utterance."""

    id: str
    #: Absolute path: a manifest is read from other folders and on other nodes.
    audio: str
    text: str
    #: File and line it comes from, for messages.
    where: str
    start_s: float = 0.0
    #: Up to the end of the audio where None.
    duration_s: float | None = None
    #: Channel from 0; the only one, or the first, where None.
    channel: int | None = None
    speaker: str | None = None
    language: str | None = None
    #: Name of the recording; the utterance's where None.
    recording: str | None = None
    #: Why the audio is known to be unusable before anyone looked at it.
    problem: str | None = None


class Header(NamedTuple):
    """What an audio file says of itself."""

    #: In Hz.
    sampling_rate: int
    #: Samples in each channel.
    frames: int
    channels: int


def probe(path: str) -> Header | str:
    """The header of an audio file, or why it has none; runs in a worker process."""
    import soundfile

    try:
        status = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if not status.st_size:
            return "an empty file (0 bytes)"
        found = soundfile.info(path)
        frames = found.frames
        if frames >= _UNKNOWN_LENGTH:  # a streamed FLAC does not say; counting is the only way
            with soundfile.SoundFile(path) as stream:
                frames = sum(len(block) for block in stream.blocks(1 << 20))
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return error.strerror or str(error)
    except soundfile.LibsndfileError as error:
        return f"no audio that libsndfile can read ({error.error_string.rstrip('.')})"
    except ValueError as error:  # a path with a NUL in it
        return str(error)
    if frames <= 0:
        return "an audio file without samples"
    if not RATES[0] <= found.samplerate <= RATES[1]:
        return f"a sampling rate of {found.samplerate} Hz, expected {RATES[0]} to {RATES[1]} Hz"
    return Header(found.samplerate, frames, found.channels)


def probe_all(paths: Sequence[str], work: Work) -> dict[str, Header | str]:
    """The header of each file, or why it has none; read on all cores."""
    unique = list(dict.fromkeys(paths))
    if len(unique) < FEW:
        return dict(zip(unique, map(probe, unique), strict=True))
    return dict(zip(unique, work.parallel_map(probe, unique), strict=True))


def region_of(
    header: Header | str, start_s: float, duration_s: float | None, channel: int | None
) -> tuple[float, float] | str:
    """(start, duration) in seconds of a region within its audio, cut short if it overshoots a little; or why not."""
    if isinstance(header, str):
        return header
    total_s = header.frames / header.sampling_rate
    end_s = total_s if duration_s is None else start_s + duration_s
    if channel is not None and channel >= header.channels:
        return f"channel {channel} asked for, but the audio has {header.channels} (counted from 0)"
    if start_s >= total_s:
        return f"starts at {start_s:g} s, but the audio ends at {total_s:g} s"
    if end_s > total_s + OVERSHOOT_S:
        return f"ends at {end_s:g} s, but the audio ends at {total_s:g} s"
    # the whole file to the sample, though its length was declared with three digits
    if start_s == 0 and abs(end_s - total_s) < 1e-3:
        return 0.0, total_s
    duration_s = round(min(end_s, total_s) - start_s, 8)
    if duration_s * header.sampling_rate < 1:
        return f"less than one sample between {start_s:g} s and {end_s:g} s"
    return start_s, duration_s


def make_cuts(utterances: Sequence[Utterance], work: Work, corpus: str) -> Iterator[MonoCut]:
    """A cut for each utterance, in their order; those that cannot be read are marked and named in a warning.

    Raises:
        DataError: not one of them can be read, which tells of a wrong path rather than of a bad file.
    """
    headers = probe_all([u.audio for u in utterances if not u.problem], work)
    regions = [u.problem or region_of(headers[u.audio], u.start_s, u.duration_s, u.channel) for u in utterances]
    report_unreadable(
        corpus,
        [(u.id, u.audio, r) for u, r in zip(utterances, regions, strict=True) if isinstance(r, str)],
        len(utterances),
    )
    unasked = sorted({u.audio for u in utterances if u.channel is None and _channels(headers.get(u.audio)) > 1})
    if unasked:
        log.warning(
            "%s: %d recordings have several channels and the first is taken ('channel' chooses), for instance %s",
            corpus, len(unasked), unasked[0],
        )  # fmt: skip
    return (_cut(u, r, headers.get(u.audio)) for u, r in zip(utterances, regions, strict=True))


def _channels(header: Header | str | None) -> int:
    return header.channels if isinstance(header, Header) else 1


def report_unreadable(corpus: str, unreadable: Sequence[tuple[str, str, str]], utterances: int) -> None:
    """Warns of (utterance, file, reason) that cannot be read.

    Raises:
        DataError: they are all there is.
    """
    if not unreadable:
        return
    listed = shown([f"{utt_id}: {name}: {reason}" for utt_id, name, reason in unreadable])
    if len(unreadable) == utterances:
        if all(reason == MISSING for _, _, reason in unreadable):
            fix = "the paths most likely start from another folder or disk: correct them, or give the corpus its 'root'"
        else:
            fix = "see the reasons above; one broken recording among good ones would only be marked"
        raise DataError(f"{corpus}: the audio of all {utterances} utterances cannot be read\n{listed}", hint=fix)
    log.warning(
        "%s: the audio of %d of %d utterances cannot be read; they stay in the manifest, are not trained on, and "
        "count as failed in a test set:\n%s",
        corpus, len(unreadable), utterances, listed,
    )  # fmt: skip


def _cut(utterance: Utterance, region: tuple[float, float] | str, header: Header | str | None) -> MonoCut:
    from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment

    channel = utterance.channel or 0
    channels = [channel]  # of unreadable audio, only the one that the cut is of
    reason = region if isinstance(region, str) else None
    if isinstance(region, str) or not isinstance(header, Header):
        start_s, duration_s = utterance.start_s, utterance.duration_s or NOMINAL_S
        # long enough to hold the region, which is what lhotse checks
        header = Header(NOMINAL_RATE, max(1, round((start_s + duration_s) * NOMINAL_RATE)), channel + 1)
    else:
        start_s, duration_s = region
        channels = list(range(header.channels))
    recording = Recording(
        id=utterance.recording or utterance.id,
        sources=[AudioSource(type="file", channels=channels, source=utterance.audio)],
        sampling_rate=header.sampling_rate,
        num_samples=header.frames,
        duration=header.frames / header.sampling_rate,
    )
    supervision = SupervisionSegment(
        id=utterance.id,
        recording_id=recording.id,
        start=0.0,  # supervisions of a cut count from the cut's start
        duration=duration_s,
        channel=channel,
        text=utterance.text,
        language=utterance.language,
        speaker=utterance.speaker,
    )
    return MonoCut(
        id=utterance.id,
        start=start_s,
        duration=duration_s,
        channel=channel,
        supervisions=[supervision],
        recording=recording,
        custom={UNREADABLE: reason} if reason else None,
    )
