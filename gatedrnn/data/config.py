"""How a text becomes tokens."""

from dataclasses import dataclass

from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees.gold import KEEP_RULES

LEVELS = ("word", "char", "subword")
EMPTY_LINES = ("skip", "eos")
TOKENIZE = ("none", "penn", "characters")
"""How lines become words: at white space, as sentences that people write, or character by character."""

MAPPINGS = ("exact", "lower", "number")
"""How a word of foreign text is looked up: as written; then in lower case too; then, if it holds a digit, as `N` too."""

SMALLEST_SUBWORDS = 258
"""The bytes, `<unk>` and `<eos>`."""


@dataclass(frozen=True)
class DataConfig:
    """The section `data` of a run's YAML.

    Args:
        folder: with train.txt, valid.txt or dev.txt, and test.txt if there is one (.gz too); none for the built-in grammar.
        level: word (see tokenize), char (every character, the space too) or subword (Hugging Face tokenizers).
        min_count: words or characters rarer than this become <unk> [1 if the training text has <unk> of its own, else 2].
        vocabulary_size: how many subwords at most to learn from the training text [8000].
        tokenizer: a tokenizer.json with the subwords, instead of learning them.
        tokenize: none for words between white space, penn for sentences as people write them (`ends.` is `ends` and `.`),
            characters for every character as a word, in scripts without spaces between words.
        empty_lines: skip them, or eos for one <eos> each, as published WikiText-2 figures count.
        mapping: how words of trees, pairs and prompts are looked up: exact, lower (lower case too) or number (N for numbers too).
        words: which terminals of a tree count: ptb (by tag) or alnum (with a letter or digit).

    Raises: ArgumentError: a value is out of range, or of no use at this level.
    """

    folder: str | None = None
    level: str = "word"
    min_count: int | None = None
    vocabulary_size: int | None = None
    tokenizer: str | None = None
    empty_lines: str = "skip"
    mapping: str = "number"
    words: str = "ptb"
    tokenize: str = "none"

    def __post_init__(self) -> None:
        for name in ("folder", "tokenizer"):
            check_path(f"data.{name}", getattr(self, name))
        one_of("data.level", self.level, LEVELS)
        one_of("data.tokenize", self.tokenize, TOKENIZE)
        one_of("data.empty_lines", self.empty_lines, EMPTY_LINES)
        one_of("data.mapping", self.mapping, MAPPINGS)
        one_of("data.words", self.words, KEEP_RULES)
        if self.min_count is not None:
            positive_int("data.min_count", self.min_count)
        if self.vocabulary_size is not None:
            positive_int("data.vocabulary_size", self.vocabulary_size, minimum=SMALLEST_SUBWORDS)
        for name in ("min_count",) if self.level == "subword" else ("vocabulary_size", "tokenizer"):
            if getattr(self, name) is not None:
                got = f"{name}={getattr(self, name)} with level={self.level}"
                raise ArgumentError(f"data.{name}", f"has no effect at level {self.level}", got, "Leave it out")
        if self.tokenize != "none" and self.level != "word":
            got = f"tokenize={self.tokenize} with level={self.level}"
            raise ArgumentError("data.tokenize", "works only at level word", got, "Leave it out")
        if self.vocabulary_size is not None and self.tokenizer is not None:
            got = f"vocabulary_size={self.vocabulary_size}, tokenizer={self.tokenizer}"
            raise ArgumentError(
                "data.vocabulary_size", "must be left out if a tokenizer is given", got, "Leave one out"
            )


def check_path(owner: str, path: str | None) -> None:
    """Raises ArgumentError: it is empty, or no system can have it."""
    if path == "" or "\0" in (path or ""):
        got = "one with a NUL" if path else "an empty one"
        raise ArgumentError(owner, "must be a path", got, "Name one, or leave it out")


@dataclass(frozen=True)
class PairDataConfig:
    """The section `data` of a run that classifies pairs.

    Args:
        folder: holds train.tsv, valid.tsv or dev.tsv, and optionally test*.tsv (.gz too); none for generated formulae.
        operators: pairs with more operators are left out of training and validation; none for no limit.

    Raises: ArgumentError: a value is out of range.
    """

    folder: str | None = None
    operators: int | None = None

    def __post_init__(self) -> None:
        check_path("data.folder", self.folder)
        if self.operators is not None:
            positive_int("data.operators", self.operators, minimum=0)


@dataclass(frozen=True)
class ParallelDataConfig:
    """The section `data` of a run that translates.

    Args:
        folder: holds train.SOURCE and train.TARGET, likewise valid (dev, val) and test, or train.tsv and so on with one column
            for each language (.gz too); none for the built-in pair of languages.
        source: code of the source language, the ending of its files.
        target: code of the target language, the ending of its files.
        columns: names of the TSV columns in order, source and target once each; none for source, target.
        level: subword (byte-level BPE) or word (at white space); none for word with the built-in pair, subword otherwise.
        joint: one vocabulary for both sides.
        vocabulary_size: the largest number of subwords to learn [8000].
        min_count: words rarer than this become <unk> [2].
        longest: pairs with more tokens on a side, including `<eos>`, are left out of training.

    Raises: ArgumentError: a value is out of range, or of no use at this level.
    """

    folder: str | None = None
    source: str = "vf"
    target: str = "en"
    columns: tuple[str, ...] | None = None
    level: str | None = None
    joint: bool = True
    vocabulary_size: int | None = None
    min_count: int | None = None
    longest: int = 100

    def __post_init__(self) -> None:
        one_of("data.level", self.token_level, ("word", "subword"))
        DataConfig(self.folder, self.token_level, self.min_count, self.vocabulary_size)
        positive_int("data.longest", self.longest)
        for name in ("source", "target"):
            code = getattr(self, name)
            if not code or "/" in code or "\0" in code:
                raise ArgumentError(f"data.{name}", "must be a language code", repr(code), "Give a code such as de")
        if self.source == self.target:
            rule = "must differ from data.source"
            raise ArgumentError("data.target", rule, repr(self.target), "Give the other language")
        if self.columns is not None and [self.columns.count(code) for code in (self.source, self.target)] != [1, 1]:
            rule = "must name data.source and data.target, each once"
            raise ArgumentError("data.columns", rule, ", ".join(self.columns), f"Write [{self.source}, {self.target}]")

    @property
    def token_level(self) -> str:
        """`level`, or what it is where it is left out."""
        return self.level or ("word" if self.folder is None else "subword")
