"""Parallel text: two files, or one with columns, whose lines say the same in two languages; and its batches.

Dimensions: T steps, B sentences of a batch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import final

import numpy as np

from gatedrnn.core.errors import DataError
from gatedrnn.data.batching import next_tokens
from gatedrnn.data.config import DataConfig, ParallelDataConfig
from gatedrnn.data.folders import file_in, files_in, folder_with
from gatedrnn.data.ragged import ChosenBatches, Ragged, by_length, columns_of
from gatedrnn.data.text import Kept, read_lines
from gatedrnn.data.vocabulary import Vocabulary

STEMS = {"train": ("train",), "valid": ("valid", "dev", "val"), "test": ("test",)}
_NAMED = 5  # lines in a message


@dataclass(frozen=True)
class TextPair:
    """Lines that say the same, by number."""

    source: list[str]
    target: list[str]


@dataclass(frozen=True)
class TranslationBatch:
    """One batch.

    Args:
        source_TB, source_B: ids [T, B] and lengths [B] of sentences, `<eos>` at their ends.
        inputs_TB, targets_TB: of their translations: `<eos>` and all but the last token; all tokens, PAD_TARGET beyond.
        target_B: lengths, `<eos>` included.
    """

    source_TB: np.ndarray
    source_B: np.ndarray
    inputs_TB: np.ndarray
    targets_TB: np.ndarray
    target_B: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As a model takes them."""
        return self.source_TB, self.source_B, self.inputs_TB, self.target_B, self.targets_TB

    @property
    def count(self) -> int:
        """Tokens that are predicted."""
        return int(self.target_B.sum())

    @property
    def steps(self) -> int:
        """T of the translations."""
        return len(self.inputs_TB)

    def part(self, index: int, parts: int) -> "TranslationBatch":
        """Part `index` of the sentences, shared out to `parts` processes."""
        here = columns_of(index, len(self.source_B), parts)
        inputs_TB, targets_TB = self.inputs_TB[:, here], self.targets_TB[:, here]
        return TranslationBatch(
            self.source_TB[:, here], self.source_B[here], inputs_TB, targets_TB, self.target_B[here]
        )


@final
class Parallel:
    """Pairs of sentences as token ids, `<eos>` at their ends. Args: text: the lines; source, target: vocabularies."""

    def __init__(self, text: TextPair, source: Vocabulary, target: Vocabulary) -> None:
        self.text = text
        self.source, self.target = Ragged.of(encoded(text.source, source)), Ragged.of(encoded(text.target, target))

    def __len__(self) -> int:
        return len(self.source)

    def lengths(self) -> np.ndarray:
        """Tokens of each pair's sides [N, 2]."""
        return np.stack([self.source.lengths_N, self.target.lengths_N], 1)

    def batch(self, chosen_B: np.ndarray) -> TranslationBatch:
        """These pairs, by number."""
        source_TB, source_B = self.source.batch(chosen_B)
        return TranslationBatch(source_TB, source_B, *next_tokens(*self.target.batch(chosen_B)))


def not_longer(pairs: Parallel, longest: int) -> np.ndarray:
    """The numbers of the pairs of at most `longest` tokens on each side. Raises: DataError: all are longer."""
    lengths_N = pairs.lengths().max(1)
    kept = np.flatnonzero(lengths_N <= longest)
    if not len(kept):
        rule = "must leave at least one pair to train on"
        got = f"{longest}; the shortest pair has {int(lengths_N.min())} tokens"
        raise DataError("data.longest", rule, got, "Raise it")
    return kept


def translation_batches(
    pairs: Parallel, batch_size: int, longest: int, seed: int, epoch: int
) -> ChosenBatches[TranslationBatch]:
    """The batches of one epoch, by number: they depend on seed and epoch alone. Pairs longer than `longest` are left out.

    Raises: DataError: as `not_longer`.
    """
    kept = not_longer(pairs, longest)
    chosen = by_length(pairs.lengths()[kept], batch_size, np.random.default_rng([seed, epoch]))
    return ChosenBatches(pairs.batch, [kept[each] for each in chosen])


_BLANKS = re.compile("[ \t]+")


def single_spaced(line: str) -> str:
    """A line with single spaces, and none at its ends: subwords would read others as tokens."""
    return _BLANKS.sub(" ", line).strip(" ")


def encoded(lines: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Ids of each line, `<eos>` at its end. Spaces at its ends, and all but one between words, do not count."""
    if not lines:
        return []
    lines = [*map(single_spaced, lines)]
    ids = vocabulary.line_encoder()(lines)
    ends = np.flatnonzero(ids == 1) + 1
    if len(ends) == len(lines):
        return [part.tolist() for part in np.split(ids, ends[:-1])]
    return [[*vocabulary.encode(vocabulary.tokens(line)), 1] for line in lines]  # a line that says `<eos>` itself


def learn_vocabularies(text: TextPair, data: ParallelDataConfig) -> tuple[Vocabulary, Vocabulary]:
    """One of each side, or the same for both where `joint`."""
    settings = DataConfig(level=data.token_level, vocabulary_size=data.vocabulary_size, min_count=data.min_count)
    source, target = [*map(single_spaced, text.source)], [*map(single_spaced, text.target)]
    if data.joint:
        both = Vocabulary.learn(iter([source, target]), settings)
        return both, both
    return Vocabulary.learn(iter([source]), settings), Vocabulary.learn(iter([target]), settings)


def read_parallel(folder: Path | str, data: ParallelDataConfig) -> dict[str, TextPair]:
    """The splits of a folder: `train.de` and `train.en` and so on, or `train.tsv`; .gz too.

    Raises: DataError: as `read_split`; train or valid is missing.
    """
    found = {split: read_split(folder, split, data) for split in STEMS}
    for split in ("train", "valid"):
        if found[split] is None:
            there = files_in(Path(folder))
            rule = f"must hold {split}.{data.source} and {split}.{data.target}, or {split}.tsv"
            raise DataError(str(folder), rule, there, "Check --data.source and --data.target, or add the files")
    return {split: text for split, text in found.items() if text is not None}


def read_split(folder: Path | str, split: str, data: ParallelDataConfig) -> TextPair | None:
    """One split of a folder, None where it is not there; of test sets that are not named `test`, the first by name.

    Raises: DataError: the folder or a side is missing, or no file; sides of different lengths, or an empty one, with the lines.
    """
    folder = folder_with(folder, f"train.{data.source} and train.{data.target}")
    endings = (f".{data.source}", f".{data.source}.gz", ".tsv", ".tsv.gz")
    others = sorted(path.name.removesuffix(end) for end in endings for path in folder.glob(f"test?*{end}"))
    stems = (*STEMS[split], *others) if split == "test" else STEMS[split]
    return next((text for stem in stems if (text := _named(folder, stem, data)) is not None), None)


def read_text_pair(path: Path | Kept, data: ParallelDataConfig) -> TextPair:
    """Parallel text that a person names: a TSV file, or what stands before .SOURCE and .TARGET. Raises: DataError: none there."""
    if isinstance(path, Kept) or path.is_file():
        return _read_table(path, data)
    found = _named(path.parent, path.name, data)
    if found is None:
        rule = f"must be a TSV file, or the common part of two files that end in .{data.source} and .{data.target}"
        raise DataError(str(path), rule, "no such file", "Check --data")
    return found


def _named(folder: Path, stem: str, data: ParallelDataConfig) -> TextPair | None:
    source, target = (_file(folder, f"{stem}.{code}") for code in (data.source, data.target))
    if source and target:
        return read_sides(source, target)
    if source or target:
        missing = data.target if source else data.source
        raise DataError(str(source or target), f"must have {stem}.{missing} beside it", "no such file", "Add it")
    table = _file(folder, f"{stem}.tsv")
    return None if table is None else _read_table(table, data)


def _file(folder: Path, name: str) -> Path | None:
    return file_in(folder, (name, f"{name}.gz"))


def read_sides(source: Path, target: Path) -> TextPair:
    """Two files, line by line. Raises: DataError: as `read_parallel`."""
    pairs = list(zip_longest((line for _, line in read_lines(source)), (line for _, line in read_lines(target))))
    short = next((k for k, pair in enumerate(pairs, 1) if None in pair), None)
    if short is not None:
        lacks, longer = (source, target) if pairs[short - 1][0] is None else (target, source)
        rule, got = "must have as many lines as the other side", f"{short - 1} lines, and {len(pairs)} in {longer.name}"
        raise DataError(str(lacks), rule, got, f"Line {short} is missing: add it")
    return _checked(f"{source} and {target.name}", TextPair([a for a, _ in pairs], [b for _, b in pairs]))


def _read_table(path: Path | Kept, data: ParallelDataConfig) -> TextPair:
    names = data.columns or (data.source, data.target)
    places, rows = [names.index(data.source), names.index(data.target)], []
    for number, line in read_lines(path):
        columns = line.split("\t")
        if len(columns) != len(names):
            rule = f"must have {len(names)} columns, {' and '.join(names)}, separated by tabs"
            advice = f"Fix the line, or train with data.columns: [{', '.join(names)}, other], which names all"
            raise DataError(f"{path}, line {number}", rule, len(columns), advice)
        rows.append([columns[place] for place in places])
    return _checked(str(path), TextPair([source for source, _ in rows], [target for _, target in rows]))


def _checked(owner: str, text: TextPair) -> TextPair:
    if not text.source:
        raise DataError(owner, "must hold a pair of sentences", "none", "Check the files")
    empty = [k for k, pair in enumerate(zip(text.source, text.target, strict=True), 1) if not all(map(str.strip, pair))]
    if empty:
        named = ", ".join(map(str, empty[:_NAMED])) + (" …" if len(empty) > _NAMED else "")
        rule, got = "must have a sentence on both sides of every line", f"an empty side in {len(empty)} lines: {named}"
        raise DataError(owner, rule, got, "Remove these lines from both sides")
    return text
