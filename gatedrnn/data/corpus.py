"""A corpus in a folder: counted once, encoded once into memory-mapped token arrays, never held in memory.

A token array is one int32 a token, `<eos>` after each sentence. Lines without a token (empty ones, and of invisible characters
where those are no tokens) hold no sentence and are skipped, unless `empty_lines="eos"` asks for one `<eos>` each (as the
published WikiText-2 figures count).
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

import numpy as np

from gatedrnn.core.checksums import checksum
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_json, write_with
from gatedrnn.data.characters import character_words
from gatedrnn.data.config import DataConfig
from gatedrnn.data.folders import file_in, files_in, folder_with
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.text import no_room, read_batches
from gatedrnn.data.vocabulary import Vocabulary

_LETTER = re.compile(r"\w")
"""What is a token, or part of one, where characters are words."""

SPLITS = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}


def find_splits(folder: Path | str) -> dict[str, Path]:
    """Files of a corpus folder by split: train.txt, valid.txt or dev.txt, test.txt (optional); each may be `.gz`.

    Raises: DataError: the folder, its training text or its validation text is missing, or a text is no file.
    """
    folder = folder_with(folder, "train.txt and valid.txt")
    found = {}
    for split, stems in SPLITS.items():
        names = [f"{stem}.txt{end}" for stem in stems for end in ("", ".gz")]
        path = file_in(folder, names)
        if path is not None:
            found[split] = path
        elif split != "test":
            rule = f"must hold {' or '.join(names)}"
            raise DataError(str(folder), rule, files_in(folder), f"Add the {split} text")
    return found


@final
class Corpus:
    """Splits of a corpus, its vocabulary, and token arrays cached in a folder.

    Args:
        files: text by split, as `find_splits` gives it.
        vocabulary: given, or learned from files["train"] as `level`, `min_count`, `vocabulary_size`, `tokenizer` and
            `tokenize` say (those of `DataConfig`).
        empty_lines: "skip" or "eos".

    Attributes: `lines` and `characters` (line ends included) by split.

    Every file is read once here, so that a damaged one is found before anything is written.
    Raises: DataError: a file is missing, not text, or has no word. ArgumentError: as `DataConfig`.
    """

    def __init__(
        self,
        files: dict[str, Path],
        vocabulary: Vocabulary | None = None,
        *,
        level: str = "word",
        min_count: int | None = None,
        vocabulary_size: int | None = None,
        tokenizer: str | None = None,
        empty_lines: str = "skip",
        tokenize: str = "none",
    ) -> None:
        data = DataConfig(None, level, min_count, vocabulary_size, tokenizer, empty_lines, tokenize=tokenize)
        self.files, self.empty_lines = dict(files), empty_lines
        self.lines: dict[str, int] = {}
        self.characters: dict[str, int] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._unknown: dict[str, int] = {}
        self._tokens: Callable[[str], object] | None = None
        if (vocabulary.tokenize if vocabulary else tokenize) == "characters":
            self._tokens = lambda line: _LETTER.search(line) or character_words(line)
        self.vocabulary = vocabulary or Vocabulary.learn(self._counted("train"), data)
        splitter = self.vocabulary.splitter
        if isinstance(splitter, Subwords) and not splitter.complete:
            self._tokens = splitter.tokens
        for split, path in self.files.items():
            if split not in self.lines:
                for _ in self._counted(split):
                    pass
            if self.characters[split] == self.lines[split]:
                raise DataError(str(path), "must hold at least one sentence", "an empty text", "Check the file")

    @property
    def sizes(self) -> dict[str, int]:
        """Tokens by split, `<eos>` included. Encodes what is not cached."""
        return {split: len(self[split]) for split in self.files}

    @property
    def unknown(self) -> dict[str, int]:
        """How many of the tokens are `<unk>`, by split. Encodes what is not cached."""
        return {split: self._unknown[split] for split in self.sizes}

    def __getitem__(self, split: str) -> np.ndarray:
        """Token ids of a split, int32 [tokens], memory-mapped: a nameless temporary file unless `cache` has run."""
        if split not in self._arrays:
            try:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    path = Path(folder) / split
                    self._write(path, split)
                    self._arrays[split] = np.memmap(path, np.int32, mode="r")
            except OSError as error:
                raise no_room("tokens", error) from error
        return self._arrays[split]

    def cache(self, folder: Path | str) -> None:
        """Memory-map the arrays in `folder`; encode them first unless they are complete and match files and vocabulary."""
        folder = Path(folder)
        index = folder / "tokens.json"
        of = self._fingerprint()
        unknown = _held(index, of, {split: folder / f"{split}.int32" for split in self.files})
        if unknown is None:
            for split in self.files:
                write_with(folder / f"{split}.int32", lambda path, split=split: self._write(path, split))
            unknown = {split: self._unknown[split] for split in self.files}
            sums = {split: checksum(folder / f"{split}.int32") for split in self.files}
            write_json(index, {"of": of, "arrays": sums, "unknown": unknown})
        self._unknown = dict(unknown)
        for split in self.files:
            self._arrays[split] = np.memmap(folder / f"{split}.int32", np.int32, mode="r")

    def _write(self, path: Path, split: str) -> None:
        encode, unknown = self.vocabulary.line_encoder(), 0
        with path.open("wb") as stream:
            for lines in self._batches(split):
                ids = encode(lines)
                stream.write(ids.data)  # whose error names its cause
                unknown += len(ids) - int(np.count_nonzero(ids))
        self._unknown[split] = unknown

    def _counted(self, split: str) -> Iterator[list[str]]:
        """The batches of a split, its lines and characters counted on the way."""
        self.lines[split] = self.characters[split] = 0
        for lines in self._batches(split):
            self.lines[split] += len(lines)
            self.characters[split] += sum(map(len, lines)) + len(lines)
            yield lines

    def _batches(self, split: str) -> Iterator[list[str]]:
        """Lines with a token; others are left out, or empty."""
        for lines in read_batches(self.files[split]):
            if cut := self._tokens:
                lines = [line if cut(line) else "" for line in lines]
            if self.empty_lines == "eos":
                yield ["" if line.isspace() else line for line in lines]
            else:
                yield [line for line in lines if line and not line.isspace()]

    def _fingerprint(self) -> dict[str, object]:
        files = {s: [_name(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for s, p in self.files.items()}
        known = {"empty_lines": self.empty_lines, "vocabulary": self.vocabulary.fingerprint()}
        lines = {} if self._tokens is None else {"lines": "with a token"}  # those cached before may hold others
        return {"files": files, **known, **lines}


def _name(path: Path) -> str:
    """The path as text that UTF-8 can write: a file may have any bytes as its name."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _held(index: Path, of: dict[str, object], arrays: dict[str, Path]) -> dict[str, int] | None:
    """Unknown tokens by split if the cache is of `of` and, by its checksums, whole; a damaged index says nothing."""
    try:
        held = json.loads(index.read_text(encoding="utf-8"))
        whole = held["of"] == of and all(checksum(path) == held["arrays"][split] for split, path in arrays.items())
        return {split: int(held["unknown"][split]) for split in arrays} if whole else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
