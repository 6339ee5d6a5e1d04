"""Word-level vocabulary: words ↔ ids, with `<unk>` and `<eos>`."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_json

UNK = "<unk>"
EOS = "<eos>"


class Vocabulary:
    """Words and their ids. `<unk>` (0) stands for every unknown word, `<eos>` (1) ends a sentence.

    Args:
        words: distinct, `<unk>` and `<eos>` first; the position is the id.
        counts: how often each word occurred in training, for information.

    Raises: ArgumentError: the special words are missing, or a word repeats.
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int] | None = None) -> None:
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        if self.words[:2] != [UNK, EOS] or len(self.ids) != len(self.words):
            rule = f"must be distinct and start with {UNK}, {EOS}"
            raise ArgumentError("Vocabulary.words", rule, self.words[:3], "Build it with Vocabulary.build")
        self.counts = list(counts) if counts is not None else [0] * len(self.words)

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], min_count: int | None = None) -> "Vocabulary":
        """Count words and keep those that occur `min_count` times, most frequent first, ties in alphabetical order.

        Args:
            sentences: words of each sentence; a text's own `<unk>` is kept as the unknown word.
            min_count: threshold; None for 1 if the text has `<unk>` of its own (as the Penn Treebank text), else 2, so that
                the unknown word is trained.

        Raises: DataError: no sentence.
        """
        counts: Counter[str] = Counter()
        lines = 0
        for sentence in sentences:
            counts.update(sentence)
            lines += 1
        if not lines:
            raise DataError("Vocabulary.build", "must see at least one sentence", 0, "Check the text")
        return cls.from_counts(counts, lines, min_count)

    @classmethod
    def from_counts(cls, counts: Counter[str], lines: int, min_count: int | None = None) -> "Vocabulary":
        """As `build`, from word counts and the number of sentences."""
        threshold = min_count if min_count is not None else (1 if counts[UNK] else 2)
        known = {w: n for w, n in counts.items() if n >= threshold and w not in (UNK, EOS)}
        ordered = sorted(known, key=lambda word: (-known[word], word))
        total = sum(counts.values()) - counts[EOS]
        unknown = total - sum(known.values())
        return cls([UNK, EOS, *ordered], [unknown, lines + counts[EOS], *(known[word] for word in ordered)])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of `words`, exactly as written; unknown ones become `<unk>`."""
        return [self.ids.get(word, 0) for word in words]

    def encode_foreign(self, words: Iterable[str]) -> list[int]:
        """Ids of words from text that was not prepared as the training text was, a treebank's say.

        A word is looked up as written, then in lower case, then, if it holds a digit, as `N` (the Penn Treebank text's
        number word), else it is `<unk>`.
        """
        return [self._foreign(word) for word in words]

    def _foreign(self, word: str) -> int:
        lower = word.lower()
        for form in (word, lower):
            if form in self.ids:
                return self.ids[form]
        return self.ids.get("N", 0) if any(c.isdigit() for c in word) else 0

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of `ids`. Raises: ArgumentError: an id is out of range."""
        found = []
        for i in ids:
            if not 0 <= i < len(self.words):
                raise ArgumentError(
                    "Vocabulary.decode", f"ids must lie in 0…{len(self.words) - 1}", i, "Is it another vocabulary's?"
                )
            found.append(self.words[i])
        return found

    def save(self, path: Path | str) -> None:
        """Write `vocabulary.json`, atomically."""
        write_json(Path(path), {"level": "word", "words": self.words, "counts": self.counts})

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read `vocabulary.json`. Raises: DataError: missing or damaged."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(saved["words"], saved.get("counts"))
        except OSError as error:
            raise DataError(
                str(path), "must be a readable vocabulary", error.strerror, "Is this a run's folder?"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise DataError(str(path), "is not a vocabulary", detail, "Restore the file or train again") from error
