"""`gatedrnn parse` and `gatedrnn eval-parsing`: trees off a run's master gates, and their scores."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gatedrnn.cli.text import nothing
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, read_sentences, read_treebank
from gatedrnn.training.run import Run, load_run
from gatedrnn.trees import ALGORITHMS, Gold, Span

Options = Any
Trees = dict[str, list[set[Span]]]
"""Spans of every sentence by algorithm."""


def parse(options: Options) -> None:
    """`gatedrnn parse`."""
    from gatedrnn.studies.parsing import default_layer
    from gatedrnn.studies.parsing import read_sentences as read
    from gatedrnn.trees import brackets, distances_to_spans

    run = load_run(options.run)
    run.vocabulary.require_words("parse")
    layer = default_layer(run.model) if options.layer is None else options.layer
    read(run.model, [], run.vocabulary.ids[EOS], layer)
    for start, sentences in _chunks(options.file, 1024):
        ids = [run.vocabulary.encode_foreign(words) for words in sentences]
        for k, (words, reading) in enumerate(
            zip(sentences, read(run.model, ids, run.vocabulary.ids[EOS], layer), strict=True), start
        ):
            spans = distances_to_spans(reading.distances, options.algorithm)
            tree = brackets(spans, words)
            if options.json:
                record = {"words": words, "tree": tree, "distances": reading.distances}
                print(json.dumps(record | {"layer": layer, "algorithm": options.algorithm}, ensure_ascii=False))
            else:
                print(tree)
            if options.svg:
                _draw(Path(options.svg) / f"{k + 1:05d}.svg", spans, words)


def eval_parsing(options: Options) -> None:
    """`gatedrnn eval-parsing`."""
    from gatedrnn.studies.parsing import evaluate_parsing
    from gatedrnn.studies.parsing.evaluation import DEFAULT_BASELINES
    from gatedrnn.trees import gold_tree

    if not options.run and not options.baseline:
        raise ArgumentError("eval-parsing", "needs a RUN or --baseline", "neither", "Try --baseline right")
    runs = [load_run(folder) for folder in options.run]
    for run in runs:
        run.vocabulary.require_words("eval-parsing")
    gold = [gold_tree(tree, options.words) for tree in read_treebank(options.treebank)]
    voters = _voters(runs, _whole_numbers(options.layer), gold)
    trees = _agreed(list(voters.values()), gold) if len(voters) > 1 else next(iter(voters.values()), None)
    baselines = options.baseline or DEFAULT_BASELINES

    def scored(trees: Trees | None, algorithm: str, names: Any = ()) -> Any:
        predicted = trees[algorithm] if trees else None
        return evaluate_parsing(gold, predicted, max_words=options.max_words, baselines=names)

    result = scored(trees, options.algorithm, baselines)
    if not options.json:
        rows = [
            (name, layer, a, scored(own, a).scores["model"])
            for (name, layer), own in voters.items()
            for a in ALGORITHMS
        ]
        titled = [
            (f"{name if len(runs) > 1 else 'model'}, layer {layer}, {a}", found) for name, layer, a, found in rows
        ]
        if len(voters) > 1:
            titled += [(f"consensus of {len(voters)}, {a}", scored(trees, a).scores["model"]) for a in ALGORITHMS]
        titled += [(name.replace("_", " "), result.scores[name]) for name in baselines]
        _print_scores(result, titled, options)
        return
    layers = [layer for _, layer in voters]
    head = {"sentences": result.sentences, "algorithm": options.algorithm}
    head |= {"layer": layers[0] if len(layers) == 1 else layers or None}
    head |= {"max_words": result.max_words, "words": options.words, "scores": result.scores}
    if len(voters) > 1:
        each = {voter: scored(own, options.algorithm).scores["model"] for voter, own in voters.items()}
        head["voters"] = [{"run": run, "layer": layer, "scores": found} for (run, layer), found in each.items()]
    print(json.dumps(head | {"label_recall": result.recall}))


def _print_scores(result: Any, rows: list[tuple[str, dict[str, float]]], options: Options) -> None:
    table = Table(title=f"unlabelled F1 in percent, {result.sentences} sentences, words by rule {options.words}")
    table.add_column("trees")
    for name in ("A", "AW", "B", "B*", "corpus"):
        table.add_column(name, justify="right")
    for title, scores in rows:
        table.add_row(title, *(f"{value:.2f}" for value in scores.values()))
    console = Console()
    console.print(table)
    if result.recall:
        frequent = list(result.recall.items())[:12]
        recall = "  ".join(f"{label} {r['recall']:.1f} ({r['count']})" for label, r in frequent)
        head = f"recall by label ({options.algorithm}), in percent (constituents)"
        console.print(f"{head}: {recall}", highlight=False, soft_wrap=True)


def _whole_numbers(layers: list[str] | None) -> list[int] | None:
    """The layers named, None for the usual one. Raises: ArgumentError: no number."""
    try:
        return [int(layer) for layer in layers] if layers else None
    except ValueError as error:
        raise ArgumentError("--layer", "must be whole numbers from 1", layers, "Name a layer of the model") from error


def _voters(runs: list[Run], layers: list[int] | None, gold: list[Gold]) -> dict[tuple[str, int], Trees]:
    """Trees of every gold sentence by run and layer."""
    from gatedrnn.studies.parsing import default_layer

    return {
        (str(run.folder), layer): _induced(run, gold, layer)
        for run in runs
        for layer in layers or [default_layer(run.model)]
    }


def _induced(run: Run, gold: list[Gold], layer: int) -> Trees:
    """The model's spans for every gold tree, by algorithm; none for a tree without a word."""
    from gatedrnn.studies.parsing import read_sentences as read
    from gatedrnn.trees import distances_to_spans

    ids = (run.vocabulary.encode_foreign(tree.words) for tree in gold if len(tree))
    readings = read(run.model, ids, run.vocabulary.ids[EOS], layer)
    distances = [next(readings).distances if len(tree) else [] for tree in gold]
    return {a: [distances_to_spans(d, a) if d else set() for d in distances] for a in ALGORITHMS}


def _agreed(voters: list[Trees], gold: list[Gold]) -> Trees:
    """The consensus of the voters' trees; the first one's where a sentence is too long for it."""
    from gatedrnn.trees import consensus
    from gatedrnn.trees.consensus import LONGEST

    def one(algorithm: str, k: int) -> set[Span]:
        trees, n = [voter[algorithm][k] for voter in voters], len(gold[k])
        return consensus(trees, n) if 0 < n <= LONGEST else trees[0]

    return {algorithm: [one(algorithm, k) for k in range(len(gold))] for algorithm in ALGORITHMS}


def _chunks(path: str, size: int) -> Any:
    """Sentences of a text in lists of `size`, with the number of the first; nothing to read is an error."""
    start, chunk = 0, []
    for _, words in read_sentences(path):
        chunk.append(words)
        if len(chunk) == size:
            yield start, chunk
            start, chunk = start + size, []
    if chunk:
        yield start, chunk
    elif start == 0:
        raise nothing(path)


def _draw(path: Path, spans: Any, words: list[str]) -> None:
    import svgling

    from gatedrnn.core.files import write_text
    from gatedrnn.trees import spans_to_tree

    write_text(path, svgling.draw_tree(spans_to_tree(spans, words)).get_svg().tostring())
