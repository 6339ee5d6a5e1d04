"""`gatedrnn distil`: a language model that learns the trees of a vote of runs beside its text."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser  # pyright: ignore[reportPrivateImportUsage]
from rich.console import Console
from rich.progress import Progress

from gatedrnn.cli.arguments import Found, option, place, required, settings
from gatedrnn.cli.commands import train
from gatedrnn.cli.output import say
from gatedrnn.cli.processes import rank
from gatedrnn.cli.text import PARSERS, is_grammar
from gatedrnn.core.checksums import checksum
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, Corpus
from gatedrnn.data.sentences import SHORTEST
from gatedrnn.data.text import read_batches
from gatedrnn.models.config import MEAN
from gatedrnn.models.saving import WEIGHTS_FILE
from gatedrnn.studies.parsing import (
    cells_with_master_gates,
    has_distances,
    parse_by_grammar,
    parse_sentences,
    vote,
    voter_weights,
)
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.teacher import GATE, LONGEST, TEACHER_FILE, DistilConfig, Teacher
from gatedrnn.training.run import Run, check_free, load_runs, locked, read_metrics
from gatedrnn.trees import spans_to_heights

SPLITS = {"train": "training", "valid": "validation"}
"""What has trees, and its name."""

_LOG_SECONDS = 60.0


@dataclass(frozen=True)
class Options(train.Options):
    """Which runs teach, and what is trained where."""

    runs: tuple[str, ...] = place("RUN", "folder of a run of language_modelling or grammar; several vote")
    task: str = option(LanguageModelling.name, f"of the student: {LanguageModelling.name}", "NAME")
    out: str = required("folder for the student, or of the student to continue", "STUDENT")
    how: DistilConfig = settings(DistilConfig, {"distil.weight": "weight", "distil.temperature": "temperature"})


def prepare(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """As for `train`; keys of `distil` too are given."""
    again, more = train.prepare(arguments)
    own = {argument.partition("=")[0][2:] for argument in arguments if argument.startswith("--distil.")}
    return again, more | {"given": more["given"] | own}


def add_sections(parser: ArgumentParser, arguments: list[str]) -> None:
    """As for `train`; it is trained sentence by sentence."""
    train.add_sections(parser, arguments)
    parser.set_defaults({"training.unit": "sentence"})


def run(options: Options) -> Found:
    """As `train`, with what the teacher is, and how the student's trees meet its trees. Raises: as there."""
    if options.task != LanguageModelling.name:
        advice = "Leave --task out, or give another --config"
        raise ArgumentError("distil --task", f"must be {LanguageModelling.name}", options.task, advice)
    runs = load_runs(options.runs, PARSERS)
    for each in runs:
        each.vocabulary.require_words(f"distil {each.folder}")
        if not is_grammar(each) and not has_distances(each.model):
            able = ", ".join(cells_with_master_gates())
            rule, got = f"needs a cell with master gates ({able}), or a grammar", f"cell {each.model.config.cell!r}"
            raise ArgumentError(f"distil {each.folder}", rule, got, "Give another run")
    own = {key for key in options.given if not key.startswith("distil.")}
    found = train.run(replace(options, given=frozenset(own)), partial(_taught, runs, options))
    metrics = [line for line in read_metrics(Path(options.out)) if line["best"]]
    best = {name: metrics[-1][name] for name in ("valid_tree_loss", "valid_tree_f1")} if metrics else {}
    teacher = Teacher.load(Path(options.out))
    how = {} if teacher is None else asdict(teacher.how)
    return Found(found.record | best | {"teacher": {"runs": _told(runs), **how}}, found.more)


def show(found: Found, options: Options) -> None:
    """As `train`, and the F1 of the student's trees."""
    train.show(found, options)
    if "valid_tree_f1" in found.record:
        print(f"trees of the validation text: F1 {found.record['valid_tree_f1']:.2f} against the teacher's trees")


def _taught(runs: list[Run], options: Options, task: Any, config: Any, out: Path, console: Console) -> Any:
    """The task with its teacher: that of the run, which must be of the same runs, or a new one, which is kept in the run."""
    known = task.teacher or (Teacher.load(out) if options.resume else None)
    if known is None and (out / WEIGHTS_FILE).exists():
        rule = "must be a run that gatedrnn distil began"
        raise DataError(str(out), rule, f"a run without {TEACHER_FILE}", "Check --out")
    how = _how(config, task, options)
    if known is not None:
        known.check_text(task.corpus, str(out))
        _check_same(known, runs, options)
        return LanguageModelling(task.corpus, known)
    own = task.corpus.vocabulary.tokenize
    for run in runs:
        if run.vocabulary.tokenize != own:
            rule, got = f"must be the student's, which is {own}", f"{run.vocabulary.tokenize} in {run.folder}"
            raise ArgumentError("data.tokenize", rule, got, f"Add --data.tokenize {run.vocabulary.tokenize}")
    heights = {split: _heights(runs, task.corpus, split, console) for split in SPLITS}
    teacher = Teacher.of(task.corpus, heights, _told(runs), how)
    if rank() == 0:
        with locked(out):  # the folder may have become another process's while the text was parsed
            if not options.resume:
                check_free(out)
            teacher.save(out)
    return LanguageModelling(task.corpus, teacher)


def _how(config: Any, task: Any, options: Options) -> DistilConfig:
    """The settings, with the layer. Raises: ArgumentError: the student that is configured cannot learn trees."""
    task.corpus.vocabulary.require_words("distil")
    if config.training.unit != "sentence":
        advice = "Leave training.unit out, or set it to sentence"
        raise ArgumentError("training.unit", "must be sentence for distil", config.training.unit, advice)
    able = cells_with_master_gates()
    if config.model.cell not in able:
        rule = f"must have master gates for distil: {', '.join(able)}"
        raise ArgumentError("model.cell", rule, config.model.cell, f"Try --model.cell {able[0]}")
    layer = config.model.layer_of_trees
    if layer == MEAN:
        advice = f"Add --model.tree_layer {min(2, len(config.model.hidden_sizes))}"
        raise ArgumentError("model.tree_layer", "must be one layer for distil, which learns the trees", layer, advice)
    if config.model.tree_gate != GATE:
        rule = f"must be {GATE} for distil, which teaches that gate"
        raise ArgumentError("model.tree_gate", rule, config.model.tree_gate, f"Add --model.tree_gate {GATE}")
    return replace(options.how, layer=layer)


def _check_same(known: Teacher, runs: list[Run], options: Options) -> None:
    """Raises ArgumentError if a run is continued with another teacher, or in another way."""
    of_run, given = ({each["sha256"]: each["run"] for each in told} for told in (known.runs, _told(runs)))
    if of_run.keys() != given.keys():
        got = f"{' '.join(given.values())}, and {' '.join(of_run.values())} before"
        advice = "Name the same runs, or start another student"
        raise ArgumentError("distil --resume", "must name the runs that the student began with", got, advice)
    for name, value in asdict(options.how).items():
        own = getattr(known.how, name)
        if f"distil.{name}" in options.given and value != own:
            got, advice = f"{value}, and {own} in the run", "Leave it out, or start another student"
            raise ArgumentError(f"distil.{name}", "must be as in the run", got, advice)


def _told(runs: list[Run]) -> list[dict[str, Any]]:
    """What a teacher's file says of its runs: each family has the same weight."""
    weights = voter_weights([run.config.task for run in runs]) or [1.0] * len(runs)
    return [
        {
            "run": str(run.folder.absolute()),
            "task": run.config.task,
            "weight": weight,
            "sha256": checksum(run.folder / WEIGHTS_FILE)["sha256"],
        }
        for run, weight in zip(runs, weights, strict=True)
    ]


def _heights(runs: list[Run], corpus: Corpus, split: str, console: Console) -> np.ndarray:
    """Heights of the vote's trees [tokens] of a split, int16; 0 in sentences of one word, or of more than `LONGEST`."""
    tokens = corpus[split]
    ends = np.flatnonzero(tokens == corpus.vocabulary.ids[EOS])
    if len(ends) != corpus.lines[split]:
        advice = "Remove it, or give each sentence a line"
        raise DataError(str(corpus.files[split]), f"must not hold the word {EOS} for distil", "some", advice)
    sizes = np.diff(ends, prepend=-1) - 1
    heights, kept = np.zeros(len(tokens), np.int16), np.flatnonzero((sizes >= SHORTEST) & (sizes <= LONGEST))
    if not len(kept):
        rule, advice = f"must hold a sentence of {SHORTEST} to {LONGEST} words for distil", "Give each sentence a line"
        raise DataError(str(corpus.files[split]), rule, f"{len(sizes)} others", advice)
    texts = tee((words for words in _sentences(corpus, split) if SHORTEST <= len(words) <= LONGEST), len(runs))
    parses = [_parses(run, text) for run, text in zip(runs, texts, strict=True)]
    votes = vote(parses, [run.config.task for run in runs])
    for k, voted in zip(kept, _shown(votes, len(kept), split, console), strict=True):
        if len(voted.words) != sizes[k]:
            got = f"{len(voted.words)} words in sentence {k + 1}, and {sizes[k]} before"
            raise DataError(str(corpus.files[split]), "must stay as it is while it is read", got, "Start again")
        heights[ends[k] - sizes[k] : ends[k]] = spans_to_heights(voted.spans, int(sizes[k]))
    by = f"{len(runs)} runs" if len(runs) > 1 else "1 run"
    say(f"teacher: trees of {len(kept):,} of {len(sizes):,} {SPLITS[split]} sentences by {by}", console)
    return heights


def _sentences(corpus: Corpus, split: str) -> Iterator[list[str]]:
    for lines in read_batches(corpus.files[split]):
        yield from map(corpus.vocabulary.tokens, lines)


def _parses(run: Run, sentences: Iterator[list[str]]) -> Iterator[Any]:
    """A voter's trees, as `parse` gives them."""
    parse: Any = parse_by_grammar if is_grammar(run) else parse_sentences
    return parse(run.model, run.vocabulary, sentences, mapping=run.config.data.mapping)


def _shown(votes: Iterator[Any], total: int, split: str, console: Console) -> Iterator[Any]:
    """The same, with a bar on a terminal, else a line a minute on standard error."""
    name = f"parsing the {SPLITS[split]} text"
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task, told = bar.add_task(name, total=total), time.monotonic()
        for done, voted in enumerate(votes, 1):
            yield voted
            bar.advance(task)
            if not console.is_terminal and not console.quiet and time.monotonic() - told > _LOG_SECONDS:
                told = time.monotonic()
                with suppress(OSError):
                    print(f"{name}  {100 * done / total:3.0f} %", file=sys.stderr)
