"""Vocabulary: tokens ↔ ids, with `<unk>` and `<eos>`; a token is a word, a character or a subword."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

from gatedrnn.core.checks import one_of
from gatedrnn.core.checksums import check
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_json
from gatedrnn.data.config import MAPPINGS, TOKENIZE, DataConfig
from gatedrnn.data.levels import EOS, UNK, Characters, Level, LineEncoder, Words
from gatedrnn.data.penn import penn_forms
from gatedrnn.data.subwords import Subwords

VOCABULARY_FILE, TOKENIZER_FILE = "vocabulary.json", "tokenizer.json"

_DEFAULT_SUBWORDS = 8000
_ESCAPED = re.compile(r"\\([/*])")  # as the Penn Treebank writes / and *
ONCE_UNKNOWN = "None"
"""A subword that earlier versions read as `<unk>` where the tokenizer names no unknown token: their runs do not list it."""


@final
class Vocabulary:
    """Tokens and their ids. `<unk>` (0) stands for every unknown token, `<eos>` (1) ends a sentence.

    Args:
        words: the tokens, distinct, `<unk>` and `<eos>` first; the position is the id.
        counts: how often each occurred in training, for information.
        splitter: cuts lines into tokens [words between white space]; `level` is its name.

    Raises: ArgumentError: the special words are missing, or a word repeats.
    """

    def __init__(
        self, words: Sequence[str], counts: Sequence[int] | None = None, splitter: Level | None = None
    ) -> None:
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        if self.words[:2] != [UNK, EOS] or len(self.ids) != len(self.words):
            rule = f"must be distinct and start with {UNK}, {EOS}"
            raise ArgumentError("Vocabulary.words", rule, self.words[:3], "Build it with Vocabulary.build")
        self.counts = list(counts) if counts is not None else [0] * len(self.words)
        self.splitter = splitter or Words()

    @property
    def level(self) -> str:
        """`word`, `char` or `subword`."""
        return self.splitter.name

    @property
    def tokenize(self) -> str:
        """How lines become words: one of `TOKENIZE`; "none" at the other levels."""
        return self.splitter.tokenize if isinstance(self.splitter, Words) else "none"

    @property
    def cuts_words(self) -> bool:
        """Whether what stands between white space may be several tokens however it is written: characters or subwords."""
        return self.level != "word" or self.tokenize == "characters"

    @classmethod
    def learn(cls, batches: Iterable[list[str]], data: DataConfig) -> "Vocabulary":
        """The vocabulary of a training text.

        Args:
            batches: its lines, in lists; read once, or not at all if `data` names a tokenizer.
            data: level, and its settings.

        Raises: DataError: a tokenizer that cannot be read. ArgumentError: a line stands where a list of them should,
            or the library for subwords is missing.
        """
        if data.level == "subword":
            size = data.vocabulary_size or _DEFAULT_SUBWORDS
            return cls.of(Subwords.load(data.tokenizer) if data.tokenizer else Subwords.learn(batches, size))
        splitter = Words(data.tokenize) if data.level == "word" else Characters()
        return cls.from_counts(splitter.count(_checked(batches)), 0, data.min_count, splitter)

    @classmethod
    def of(cls, subwords: Subwords) -> "Vocabulary":
        """The vocabulary of a tokenizer."""
        return cls(subwords.words, None, subwords)

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
            raise DataError("Vocabulary.build", "needs at least one sentence", 0, "Check the text")
        return cls.from_counts(counts, lines, min_count)

    @classmethod
    def from_counts(
        cls, counts: Counter[str], lines: int, min_count: int | None = None, splitter: Level | None = None
    ) -> "Vocabulary":
        """As `build`, from counts and the number of sentences (beyond the `<eos>` that are counted)."""
        threshold = min_count if min_count is not None else (1 if counts[UNK] else 2)
        known = {w: n for w, n in counts.items() if n >= threshold and w not in (UNK, EOS)}
        ordered = sorted(known, key=lambda word: (-known[word], word))
        total = sum(counts.values()) - counts[EOS]
        unknown = total - sum(known.values())
        own = [unknown, lines + counts[EOS], *(known[word] for word in ordered)]
        return cls([UNK, EOS, *ordered], own, splitter)

    def __len__(self) -> int:
        return len(self.words)

    def tokens(self, line: str) -> list[str]:
        """Tokens of a line of text: what every command makes of the text that it reads."""
        return self.splitter.tokens(line)

    def text(self, tokens: Iterable[str]) -> str:
        """Readable text of tokens, a new line at each `<eos>`; with `tokenize: penn` spaces stand as people put them."""
        lines: list[list[str]] = [[]]
        for token in tokens:
            if token == EOS:
                lines.append([])
            else:
                lines[-1].append(token)
        return "\n".join(self.splitter.join(line) if line else "" for line in lines)

    def readable(self, tokens: Iterable[str]) -> list[str]:
        """Tokens to be shown: those of a byte-level tokenizer as text, with ▁ for a space; others as they are."""
        return self.splitter.readable(tokens) if isinstance(self.splitter, Subwords) else [*tokens]

    def line_encoder(self) -> LineEncoder:
        """What encodes lists of lines in bulk, int32 [tokens], each line followed by `<eos>`."""
        return self.splitter.encoder(self.ids)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of tokens, exactly as written; unknown ones become `<unk>`."""
        return [self.ids.get(word, 0) for word in words]

    def encode_foreign(self, words: Iterable[str], mapping: str = "number") -> list[int]:
        """Ids of words of a text that was prepared in another way than the training text, such as a treebank.

        A word is looked up as written (`exact`), then in lower case (`lower`), then, if it holds a digit, as `N`, the word
        for numbers in the Penn Treebank text (`number`; with `tokenize: characters` N is a letter); otherwise it is `<unk>`. With
        `tokenize: penn`, brackets, quotation marks and apostrophes are looked up in its form, and `\\/` and `\\*` as `/` and `*`.

        Raises: ArgumentError: the tokens are not words, or not the characters that are words here; an unknown mapping.
        """
        self.require_words("Vocabulary.encode_foreign")
        if self.tokenize == "characters":
            words = [self._character(word) for word in words]
        words = penn_forms(list(words)) if self.tokenize == "penn" else words
        if one_of("mapping", mapping, MAPPINGS) == "exact" and self.tokenize != "penn":
            return self.encode(words)
        return [self._foreign(word, mapping) for word in words]

    def _foreign(self, word: str, mapping: str) -> int:
        forms = (word,) if mapping == "exact" else (word, word.lower())
        plain = (_ESCAPED.sub(r"\1", form) for form in forms) if self.tokenize == "penn" else ()
        for form in (*forms, *plain):
            if form in self.ids:
                return self.ids[form]
        number = mapping == "number" and self.tokenize != "characters" and any(c.isdigit() for c in word)
        return self.ids.get("N", 0) if number else 0

    def _character(self, word: str) -> str:
        """`word`, if it is one here."""
        if word not in self.ids and len(word) > 1 and len(self.tokens(word)) != 1:
            rule, advice = "must be single characters (tokenize=characters)", "Give the sentences as text"
            raise ArgumentError("words", rule, repr(word), advice)
        return word

    def require_words(self, owner: str) -> None:
        """Raise ArgumentError for `owner` if the tokens are not words."""
        if self.level != "word":
            advice = "The command works on words; train with --data.level word"
            raise ArgumentError(owner, "needs a vocabulary of words", f"level {self.level}", advice)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Tokens of `ids`. Raises: ArgumentError: an id is out of range."""
        found = []
        for i in ids:
            if not 0 <= i < len(self.words):
                rule = f"ids must lie in 0…{len(self.words) - 1}"
                raise ArgumentError("Vocabulary.decode", rule, i, "Are they from another vocabulary?")
            found.append(self.words[i])
        return found

    def fingerprint(self) -> str:
        """A hash that differs wherever a text would be encoded differently."""
        settings = self.splitter.settings if isinstance(self.splitter, Subwords) else ""
        settings = self.tokenize if self.tokenize != "none" else settings  # "" as earlier versions had it
        return hashlib.sha256(json.dumps([self.level, self.words, settings]).encode()).hexdigest()

    def save(self, path: Path | str) -> None:
        """Write `vocabulary.json` and, for subwords, `tokenizer.json` beside it, each atomically."""
        path = Path(path)
        if isinstance(self.splitter, Subwords):
            self.splitter.save(_tokenizer(path))
        tokenize = {} if self.tokenize == "none" else {"tokenize": self.tokenize}
        write_json(path, {"level": self.level, **tokenize, "words": self.words, "counts": self.counts})

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read `vocabulary.json` and, for subwords, `tokenizer.json` in the same folder.

        Raises: DataError: missing or damaged. CheckpointError: a file differs from the saved one, by its checksum.
        """
        path = Path(path)
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            tokenize = one_of("tokenize", saved.get("tokenize", "none"), TOKENIZE)
            splitters = {"word": Words(tokenize), "char": Characters(), "subword": None}
            if not all(isinstance(word, str) for word in saved["words"]):
                raise ValueError("a token that is not text")
            vocabulary = cls(saved["words"], saved.get("counts"), splitters[saved.get("level", "word")])
        except OSError as error:
            raise DataError(
                str(path), "must be a readable vocabulary", error.strerror, "Is this a run's folder?"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise DataError(str(path), "is not a vocabulary", detail, "Restore the file or train again") from error
        check(path)
        return vocabulary._with_tokenizer(path) if saved.get("level") == "subword" else vocabulary

    def _with_tokenizer(self, path: Path) -> "Vocabulary":
        tokenizer = _tokenizer(path)
        splitter = Subwords.load(tokenizer)
        check(tokenizer)
        if ONCE_UNKNOWN in splitter.words and ONCE_UNKNOWN not in self.ids:
            splitter = Subwords.load(tokenizer, [ONCE_UNKNOWN])
        if splitter.words != self.words:
            got = f"{len(splitter.words)} and {len(self.words)} tokens"
            rule = f"must have the tokens of {path.name}, in their order"
            raise DataError(str(tokenizer), rule, got, "Restore the run's own file")
        return Vocabulary(self.words, self.counts, splitter)


def _tokenizer(path: Path) -> Path:
    """The file of subwords beside a vocabulary's: tokenizer.json, or tokenizer.source.json beside vocabulary.source.json."""
    return path.with_name(path.name.replace("vocabulary", "tokenizer", 1))


def _checked(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    for lines in batches:
        if isinstance(lines, str):  # whose characters would be read as lines
            raise ArgumentError("Vocabulary.learn", "takes lists of lines", repr(lines[:40]), "Write [lines]")
        yield lines
