"""What commands that read runs or a text, or write a folder, share."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import Any, TypeVar

from gatedrnn.cli.arguments import option
from gatedrnn.cli.arguments import place as argument
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import exists
from gatedrnn.data import MAPPINGS, ConlluSentence, Vocabulary, read_conllu, spaced_words
from gatedrnn.tasks import GrammarInduction, LanguageModelling

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code of what Ctrl-C ended, as shells have it."""

PARSERS = (LanguageModelling.name, GrammarInduction.name)
"""Tasks whose runs have trees."""

GO_ON = "run the same command with --resume to continue"

LAYER_TOLD = (
    "layer to read, from 1, or mean for the mean of all layers [model.tree_layer, else the second, or the only one]"
)
GATE_TOLD = (
    "gate from which distances are computed: master_forget (1 − its mean), master_input (its mean), or both (the mean of the "
    "two) [model.tree_gate, else master_forget]"
)
ALGORITHM_TOLD = "how trees are built from distances: biased (as published; leans to the right) or unbiased"

BEAM_NAMES = {"beam": "size", "alpha": "alpha"}
"""Options of a search for translations."""

_NEW_LEVELS = 32
_ROOM = "x" * 64  # as long as the names of files that will be written


def mapping_option(default: str) -> Any:
    """`--mapping`."""
    told = f"how words are looked up: exact, lower (in lower case too) or number (as N for numbers too) {default}"
    return option(None, told, choices=MAPPINGS)


def text_place(conllu: bool = False) -> Any:
    """FILE. Args: conllu: whether it may be CoNLL-U."""
    more = ", or CoNLL-U (FILE.conllu)" if conllu else ""
    return argument("FILE", f"text, one sentence per line{more}; - for text on standard input", "-")


def conllu_option(attributes: str) -> Any:
    """`--conllu`."""
    return option(False, f"print CoNLL-U, with {attributes}; everything else in FILE.conllu is kept")


def twice(values: Iterator[T], wanted: bool) -> tuple[Iterator[T], Iterator[T] | None]:
    """The values, and the same again if that is wanted."""
    if not wanted:
        return values, None
    first, again = tee(values)
    return first, again


def as_conllu(vocabulary: Vocabulary, lines: Iterable[str]) -> Iterator[ConlluSentence]:
    """A sentence for each line that has a word and a token: a tokenizer may make nothing of a word."""
    number = 0
    for line in lines:
        words, spaces = spaced_words(vocabulary, line)
        if words and vocabulary.tokens(line):
            number += 1
            yield ConlluSentence.of(words, spaces, line, number)


def conllu_sentences(path: str) -> Iterator[ConlluSentence]:
    """Sentences of a file of CoNLL-U. Raises: DataError: as `read_conllu`, or there is none."""
    found = False
    for sentence in read_conllu(path):
        found = True
        yield sentence
    if not found:
        raise nothing(path)


def check_conllu(options: Any, *others: str) -> None:
    """Raise ArgumentError if `--conllu` stands beside an option that prints something else."""
    for name in ("json", *others):
        if options.conllu and getattr(options, name):
            raise ArgumentError("--conllu", f"cannot be combined with --{name}", "both", "Leave one of them out")


def check_gates_are_read(options: Any) -> None:
    """Raise ArgumentError if `--layer`, `--gate` or `--algorithm` (or `--select`) is given where every run is a grammar."""
    for name in ("layer", "gate", "algorithm", "select"):
        if name in options.given:
            rule = f"applies only to runs of the task {LanguageModelling.name}"
            raise ArgumentError(f"--{name}", rule, f"a run of the task {GrammarInduction.name}", f"Drop --{name}")


def check_recurrent(command: str, run: Any) -> None:
    """Raise ArgumentError for `command` if the model of a run has no recurrent layers."""
    if is_grammar(run):
        got = f"a run of the task {run.config.task}"
        raise ArgumentError(command, "needs a model with recurrent layers", got, "Give a run of another task")


def is_grammar(run: Any) -> bool:
    """Whether a run is a grammar, which has trees and no gates."""
    return run.config.task == GrammarInduction.name


def mapping_of(run: Any, options: Any) -> str:
    """How words are looked up: as `--mapping` says, else as in the run."""
    return options.mapping or run.config.data.mapping


def run_names(places: Sequence[str]) -> list[str]:
    """A name for each run: that of its folder or link, or the path as given where two have the same name."""
    own = [Path(place).resolve().name if Path(place).name in ("", "..") else Path(place).name for place in places]
    names = [name if name and own.count(name) == 1 else place for name, place in zip(own, places, strict=True)]
    return names if len({*names}) == len(names) else [*places]


def nothing(path: str) -> DataError:
    """The error of a text without a sentence; `-` is standard input."""
    name = "standard input" if path == "-" else path
    return DataError(name, "must hold at least one sentence", "an empty text", "Check the file")


def check_folder(option: str, path: str) -> None:
    """Check that a folder can be at `path`: it is there, or new below one that is there.

    Raises: ArgumentError: a file, a dangling link, a name too long, or folders too deep.
    """
    folder, advice = Path(path), f"Choose another {option}"
    try:
        exists(folder / _ROOM)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArgumentError(option, "must name a folder", f"{path!r}: {reason}", advice) from error
    new = 0
    for place in (folder, *folder.absolute().parents):
        if os.path.lexists(place):
            if not place.is_dir():
                kind = "a link to nothing" if place.is_symlink() and not place.exists() else "a file"
                raise ArgumentError(option, "must be a folder or a new path", f"{str(place)!r}, {kind}", advice)
            break
        new += 1
    if new > _NEW_LEVELS:
        rule = f"must need at most {_NEW_LEVELS} new folders, one inside another"
        raise ArgumentError(option, rule, f"{new} of them", advice)
