"""A corpus in a folder: counted once, encoded once into memory-mapped token arrays, never held in memory.

A token array is one int32 a token, `<eos>` after each sentence. Empty lines hold no sentence and are skipped, unless
`empty_lines="eos"` asks for one `<eos>` each (as the published WikiText-2 figures count).
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import final

import numpy as np

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_json, write_with
from gatedrnn.data.config import EMPTY_LINES
from gatedrnn.data.text import read_lines
from gatedrnn.data.vocabulary import EOS, UNK, Vocabulary

SPLITS = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}

_FLUSH_TOKENS = 1 << 20


def find_splits(folder: Path | str) -> dict[str, Path]:
    """Files of a corpus folder by split: train.txt, valid.txt or dev.txt, test.txt (optional); each may be `.gz`.

    Raises: DataError: the folder, its training text or its validation text is missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(str(folder), "must be a folder with train.txt and valid.txt", "no such folder", "Check --data")
    found = {}
    for split, stems in SPLITS.items():
        names = [f"{stem}.txt{end}" for stem in stems for end in ("", ".gz")]
        present = [folder / name for name in names if (folder / name).is_file()]
        if present:
            found[split] = present[0]
        elif split != "test":
            there = ", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "an empty folder"
            raise DataError(str(folder), f"must hold {' or '.join(names)}", there, f"Add the {split} text")
    return found


@final
class Corpus:
    """Splits of a corpus, its vocabulary, and token arrays cached in a folder.

    Args:
        files: text by split, as `find_splits` gives it.
        vocabulary: given, or built from files["train"] with `min_count`.
        empty_lines: "skip" or "eos".

    Every file is read once here, so that a damaged one is found before anything is written.
    Raises: DataError: a file is missing, not text, or has no word.
    """

    def __init__(
        self,
        files: dict[str, Path],
        vocabulary: Vocabulary | None = None,
        *,
        min_count: int | None = None,
        empty_lines: str = "skip",
    ) -> None:
        self.files = dict(files)
        self.empty_lines = one_of("data.empty_lines", empty_lines, EMPTY_LINES)
        self.lines: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        counted: dict[str, Counter[str]] = {}
        for split, path in self.files.items():
            counts: Counter[str] = Counter()
            lines = 0
            for words in self._sentences(path):
                counts.update(words)
                lines += 1
            if not counts:
                raise DataError(str(path), "must hold at least one sentence", "an empty text", "Check the file")
            self.lines[split], counted[split] = lines, counts
        self.vocabulary = vocabulary or Vocabulary.from_counts(counted["train"], self.lines["train"], min_count)
        known = self.vocabulary.ids
        for split, counts in counted.items():
            self.unknown[split] = sum(n for word, n in counts.items() if word not in known or word == UNK)
        self.sizes = {split: counts.total() + self.lines[split] for split, counts in counted.items()}
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, split: str) -> np.ndarray:
        """Token ids of a split, int32 [tokens], memory-mapped once `cache` has run."""
        if split not in self._arrays:
            self._arrays[split] = np.fromiter(self._tokens(split), np.int32)
        return self._arrays[split]

    def cache(self, folder: Path | str) -> None:
        """Encode every split into `folder` unless the arrays there are of the same files and vocabulary, and map them."""
        folder = Path(folder)
        index = folder / "tokens.json"
        fingerprint = self._fingerprint()
        whole = all(_size(folder / f"{split}.int32") == 4 * size for split, size in self.sizes.items())
        if not whole or not _holds(index, fingerprint):
            for split in self.files:
                write_with(folder / f"{split}.int32", lambda path, split=split: self._write(path, split))
            write_json(index, fingerprint)
        for split in self.files:
            self._arrays[split] = np.memmap(folder / f"{split}.int32", np.int32, mode="r")

    def _write(self, path: Path, split: str) -> None:
        with path.open("wb") as stream:
            buffer = array("i")
            for token in self._tokens(split):
                buffer.append(token)
                if len(buffer) >= _FLUSH_TOKENS:
                    buffer.tofile(stream)
                    buffer = array("i")
            buffer.tofile(stream)

    def _tokens(self, split: str) -> Iterator[int]:
        eos = self.vocabulary.ids[EOS]
        for words in self._sentences(self.files[split]):
            yield from self.vocabulary.encode(words)
            yield eos

    def _sentences(self, path: Path) -> Iterator[list[str]]:
        for _, line in read_lines(path):
            words = line.split()
            if words or self.empty_lines == "eos":
                yield words

    def _fingerprint(self) -> dict[str, object]:
        files = {s: [str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for s, p in self.files.items()}
        words = json.dumps(self.vocabulary.words).encode()
        return {"files": files, "empty_lines": self.empty_lines, "words": hashlib.sha256(words).hexdigest()}


def _holds(index: Path, fingerprint: dict[str, object]) -> bool:
    """Whether the cache's index says `fingerprint`; a missing or damaged one does not."""
    try:
        return json.loads(index.read_text(encoding="utf-8")) == fingerprint
    except (OSError, ValueError):
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
