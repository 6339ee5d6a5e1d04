"""`gatedrnn gates`: what the gates of runs do over a text and in sentences, as figures and JSON."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import flag_of, option, place
from gatedrnn.cli.output import say, show_table, status
from gatedrnn.cli.text import mapping_option, run_names
from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import write_json
from gatedrnn.data.text import rereadable
from gatedrnn.plots.numbers import in_words
from gatedrnn.studies.gates import collect
from gatedrnn.tasks import TASKS
from gatedrnn.training.run import Run, load_runs

_STRETCHES = 20
_LONGEST = 400  # tokens of a sentence that is drawn
_RECORD = "gates.json"


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, over what."""

    runs: tuple[str, ...] = place("RUN", "folder of a trained run; several are overlaid")
    data: str | None = option(None, "text for histograms, one sentence per line, .gz too", "FILE")
    sentence: tuple[str, ...] = option((), "sentence whose average gates are shown at each word; repeatable", "TEXT")
    out: str = option("gatedrnn-gates", "folder for figures and gates.json", "DIR")
    batch_size: int | None = option(None, f"stretches of the text read side by side [{_STRETCHES}]")
    mapping: str | None = mapping_option("[the run's], in --sentence")


def run(options: Options) -> dict[str, Any]:
    """What the gates do, by run; figures and `gates.json` are written. Raises: ArgumentError: options that do not fit."""
    from gatedrnn.plots.gates import COLORS
    from gatedrnn.plots.trees import KINDS, save_all

    names = run_names(options.runs)
    if len(names) > len(COLORS):
        raise ArgumentError("gates", f"takes 1 to {len(COLORS)} runs", len(names), "Give fewer runs")
    if not options.data and not options.sentence:
        raise ArgumentError("gates", "needs --data FILE or --sentence TEXT", "neither", "Try --data valid.txt")
    for name, needed in (("batch_size", "data"), ("mapping", "sentence")):
        if getattr(options, name) is not None and not getattr(options, needed):
            flag = flag_of(name)
            raise ArgumentError(f"gates {flag}", f"needs --{needed}", "none", f"Add --{needed}, or drop {flag}")
    empty = [sentence for sentence in options.sentence if not sentence.split()]
    if empty:
        raise ArgumentError(
            "--sentence", "must have at least one word", repr(empty[0]), "Write --sentence 'a few words'"
        )
    runs = dict(zip(names, load_runs(options.runs, None), strict=True))
    options = replace(options, data=rereadable(options.data) if options.data else None)
    record = {
        name: {"layers": _layers(run, options), "sentences": _sentences(run, options)} for name, run in runs.items()
    }
    folder = Path(options.out)
    earlier = _figures_named(folder)
    write_json(folder / _RECORD, record)
    for name, figure in _figures(record):
        save_all(figure, folder, name)
        earlier.discard(name)
    for name in earlier:
        for kind in KINDS:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    return record


def show(found: dict[str, Any], options: Options) -> None:
    """A table, and where the figures are."""
    _print(found)
    say(f"figures and {_RECORD} are in {Path(options.out)}")


def _figures_named(folder: Path) -> set[str]:
    """The figures of an earlier call, as its record names them: it may have had more sentences or runs."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # no record, or none of this command
        before = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        sentences = [_sentence(before, run, k) for run in before for k in range(1, 1 + len(before[run]["sentences"]))]
        return {"histograms", "update-frequency", *sentences}
    return set()


def _sentence(record: dict[str, Any], run: str, number: int) -> str:
    """The name of a sentence's figure, of each run another."""
    names = {each: re.sub(r"[/\\:]", "-", each).strip("-") for each in record}
    apart = len({name.casefold() for name in names.values()}) == len(names)
    own = names[run] if apart else f"{[*record].index(run) + 1}-{names[run]}"
    return f"sentence-{number}" + (f"-{own}" if len(record) > 1 else "")


def _layers(run: Run, options: Options) -> list[dict[str, Any]]:
    if not options.data:
        return []
    task, size = TASKS[run.config.task], _STRETCHES if options.batch_size is None else options.batch_size
    positive_int("gates.batch_size", size)
    text = task.text(run.vocabulary, run.config.data, run.text_folder, path=options.data)
    with status(f"reading {options.data} with {run.folder}", quiet=options.json):
        return [asdict(layer) for layer in collect(task.gates(run.model, run.vocabulary, text, size))]


def _sentences(run: Run, options: Options) -> list[dict[str, Any]]:
    mapping = options.mapping or getattr(run.config.data, "mapping", "exact")
    by_word = TASKS[run.config.task].gates_by_word
    each = (asdict(by_word(run.model, run.vocabulary, sentence, mapping)) for sentence in options.sentence)
    return [{key: value for key, value in found.items() if value is not None} for found in each]


def _figures(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    from gatedrnn.plots.gates import attention_and_gates, gates_of_words, histograms, update_frequencies

    layers = {name: found["layers"] for name, found in record.items() if found["layers"]}
    if layers:
        yield "histograms", histograms(layers)
        if any(layer["update_frequency"] for each in layers.values() for layer in each):
            yield "update-frequency", update_frequencies(layers)
    for run, found in record.items():
        for number, sentence in enumerate(found["sentences"], 1):
            rows, written, name = _rows(sentence), sentence.get("translation"), _sentence(record, run, number)
            if len(sentence["words"]) > _LONGEST:
                size = len(sentence["words"])
                told = f"sentence {number} has {size} tokens, and is not drawn: {_LONGEST} at most are"
                print(f"gatedrnn: {run}: {told}; its values are in {_RECORD}", file=sys.stderr)
            elif written:
                sides = (sentence["words"], rows), (written["words"], _rows(written))
                yield name, attention_and_gates(*sides, sentence["attention"])
            elif rows:
                yield name, gates_of_words(sentence["words"], rows)


def _rows(sentence: dict[str, Any]) -> dict[str, list[float]]:
    """What is drawn under words: each gate of each layer, and the distances."""
    each = zip(sentence["names"], sentence["layers"], strict=True)
    rows = {
        f"{name} {in_words(gate)}": values
        for name, layer in each
        for gate, values in layer.items()
        if gate != "cell_candidate"
    }
    return rows | {f"{k} distance": values for k, values in enumerate(sentence["distances"], 1)}


def _print(record: dict[str, Any]) -> None:
    table = Table(title="values of each gate: mean, and share of values in percent")
    for name in ("run", "layer", "gate"):
        table.add_column(name, overflow="fold")
    for name in ("mean", "below 0.1", "above 0.9", "between", "split point"):
        table.add_column(name, justify="right")
    for run, found in record.items():
        for layer in found["layers"]:
            for name, gate in layer["gates"].items():
                if gate["start"] < 0:  # a candidate is neither closed nor open
                    continue
                low, high = 100 * gate["low"], 100 * gate["high"]
                split = layer["split_points"].get(name)
                cells = [f"{gate['mean']:.3f}", f"{low:.1f}", f"{high:.1f}", f"{max(0.0, 100 - low - high):.1f}"]
                table.add_row(escape(run), layer["name"], name, *cells, "" if split is None else f"{split:.3f}")
    if table.row_count:
        show_table(table)
