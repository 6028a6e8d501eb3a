"""The utterances of one or more manifests, by id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError
from espnet3_rules.manifest import Entry, ManifestReader


class Corpus:
    """The cuts of several manifests as if they were one; each id is there once.

    Can be pickled and forked, so that loader processes share it.

    Raises:
        DataError: a manifest is missing or damaged, or two of them hold the same id.
    """

    def __init__(self, manifests: Sequence[Path | str]) -> None:
        self.readers = [ManifestReader(path) for path in manifests]
        self._reader_of: dict[str, ManifestReader] = {}
        for reader in self.readers:
            for utt_id in reader.entries:
                if utt_id in self._reader_of:
                    raise DataError(
                        f"{utt_id}: an utterance of {self._reader_of[utt_id].path} and of {reader.path} too",
                        hint="leave one of the manifests out, or give their utterances different ids",
                    )
                self._reader_of[utt_id] = reader

    def __len__(self) -> int:
        return len(self._reader_of)

    @property
    def entries(self) -> list[Entry]:
        """All entries, manifest by manifest."""
        return [entry for reader in self.readers for entry in reader.entries.values()]

    def entry(self, utt_id: str) -> Entry:
        """What the index says of an utterance."""
        return self._reader_of[utt_id].entries[utt_id]

    def cut(self, utt_id: str) -> Any:
        """The Lhotse cut of an utterance."""
        return self._reader_of[utt_id][utt_id]
