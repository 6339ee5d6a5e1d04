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
from gatedrnn.trees import ALGORITHMS, Gold, Span, agreement

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
    from gatedrnn.studies.parsing import by_length, evaluate_parsing
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

    def scored(trees: Trees | None, algorithm: str, names: Any = (), samples: int = 0) -> Any:
        predicted, limit = trees[algorithm] if trees else None, options.max_words
        return evaluate_parsing(gold, predicted, max_words=limit, baselines=names, samples=samples)

    result = scored(trees, options.algorithm, baselines, options.bootstrap)
    chosen = trees[options.algorithm] if trees else None
    lengths = by_length(gold, chosen, baselines) if options.by_length else {}
    if options.json:
        each = [own[options.algorithm] for own in voters.values()]
        own_scores = [scored(own, options.algorithm).scores["model"] for own in voters.values()]
        _print_json(result, lengths, list(voters), own_scores, _agreements(each, gold), options)
        return
    rows = []
    for (name, layer), own in voters.items():
        title = f"{name if len(runs) > 1 else 'model'}, layer {layer}"
        rows += [(f"{title}, {a}", scored(own, a).scores["model"]) for a in ALGORITHMS]
    if len(voters) > 1:
        rows += [(f"consensus of {len(voters)}, {a}", scored(trees, a).scores["model"]) for a in ALGORITHMS]
    rows += [(_shown(name), result.scores[name]) for name in baselines]
    _print_scores(result, lengths, rows, options)
    for k, others in enumerate(_agreements([own[options.algorithm] for own in voters.values()], gold)):
        found = ", ".join(f"{value:.1f}" for value in others)
        _say(f"agreement of voter {k + 1} with each ({options.algorithm}): F1 {found}")


def _agreements(voters: list[list[set[Span]]], gold: list[Gold]) -> list[list[float]]:
    """F1 of every voter's trees against every voter's; nothing for one."""
    lengths = [len(tree) for tree in gold]
    return [[agreement(one, other, lengths) for other in voters] for one in voters] if len(voters) > 1 else []


def _print_json(
    result: Any, lengths: Any, voters: list[Any], scores: list[Any], agreements: list[Any], options: Options
) -> None:
    layers = [layer for _, layer in voters]
    head: dict[str, Any] = {"sentences": result.sentences, "algorithm": options.algorithm}
    head |= {"layer": layers[0] if len(layers) == 1 else layers or None}
    head |= {"max_words": result.max_words, "words": options.words, "scores": result.scores}
    if len(voters) > 1:
        each = zip(voters, scores, strict=True)
        head["voters"] = [{"run": run, "layer": layer, "scores": found} for (run, layer), found in each]
        head["agreement"] = agreements
    if result.intervals:
        head["intervals"] = result.intervals
    if lengths:
        head["by_length"] = {
            name: {"sentences": part.sentences, "scores": part.scores} for name, part in lengths.items()
        }
    print(json.dumps(head | {"depth": result.depth, "label_recall": result.recall}))


def _print_scores(result: Any, lengths: Any, rows: list[tuple[str, dict[str, float]]], options: Options) -> None:
    columns = ("A", "AW", "B", "B*", "corpus")
    title = f"unlabelled F1 in percent, {result.sentences} sentences, words by rule {options.words}"
    _print_table(title, columns, [(name, [f"{value:.2f}" for value in found.values()]) for name, found in rows])
    if result.intervals:
        found = [
            (_shown(name), [f"{low:.1f}–{high:.1f}" for low, high in by.values()])
            for name, by in result.intervals.items()
        ]
        _print_table(
            f"95 % intervals ({options.algorithm}), {options.bootstrap} samples of the sentences", columns, found
        )
    if lengths:
        title = f"F1 by protocol B and length ({options.algorithm})"
        of = [f"{name} words ({part.sentences})" for name, part in lengths.items()]
        parts = [part.scores for part in lengths.values()]
        _print_table(
            title, of, [(_shown(name), [f"{part[name]['B']:.1f}" for part in parts]) for name in result.scores]
        )
    depths = "  ".join(f"{_shown(name)} {value:.1f}" for name, value in result.depth.items())
    _say(f"mean depth of trees ({options.algorithm}): {depths}")
    if result.recall:
        frequent = list(result.recall.items())[:12]
        recall = "  ".join(f"{label} {r['recall']:.1f} ({r['count']})" for label, r in frequent)
        _say(f"recall by label ({options.algorithm}), in percent (constituents): {recall}")


def _print_table(title: str, columns: Any, rows: list[tuple[str, list[str]]]) -> None:
    table = Table(title=title)
    table.add_column("trees")
    for name in columns:
        table.add_column(name, justify="right")
    for name, cells in rows:
        table.add_row(name, *cells)
    Console().print(table)


def _say(text: str) -> None:
    Console().print(text, highlight=False, soft_wrap=True)


def _shown(name: str) -> str:
    return name.replace("_", " ")


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
