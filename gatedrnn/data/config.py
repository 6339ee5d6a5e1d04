"""How a text becomes tokens."""

from dataclasses import dataclass

from gatedrnn.core.checks import one_of, positive_int

EMPTY_LINES = ("skip", "eos")


@dataclass(frozen=True)
class DataConfig:
    """The section `data` of a run's YAML.

    Args:
        folder: with train.txt, valid.txt or dev.txt, and test.txt if there is one (.gz too); none for the built-in grammar.
        level: word (words at white space).
        min_count: words rarer than this become <unk> [1 if the training text has <unk> of its own, else 2].
        empty_lines: skip them, or eos for one <eos> each, as published WikiText-2 figures count.

    Raises: ArgumentError: a value is out of range.
    """

    folder: str | None = None
    level: str = "word"
    min_count: int | None = None
    empty_lines: str = "skip"

    def __post_init__(self) -> None:
        one_of("data.level", self.level, ("word",))
        one_of("data.empty_lines", self.empty_lines, EMPTY_LINES)
        if self.min_count is not None:
            positive_int("data.min_count", self.min_count)
