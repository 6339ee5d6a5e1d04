"""`gatedrnn eval-parsing`: F1 of the trees off runs' master gates, or by their grammars, beside baselines."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, place, required
from gatedrnn.cli.output import status
from gatedrnn.cli.scores import print_scores, write_report
from gatedrnn.cli.text import (
    ALGORITHM_TOLD,
    GATE_TOLD,
    LAYER_TOLD,
    PARSERS,
    check_gates_are_read,
    is_grammar,
    mapping_of,
    mapping_option,
)
from gatedrnn.cli.votes import read_weights, weight_option, weights_told
from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import read_treebank
from gatedrnn.models.grammar import LONGEST
from gatedrnn.plots.numbers import in_words
from gatedrnn.studies.parsing import (
    BASELINE_NAMES,
    PRIOR,
    Ballot,
    agreements,
    by_length,
    evaluate_parsing,
    grammar_trees,
    induced_trees,
    layer_named,
    layers_by_gold,
    read_gold,
    voter_weights,
)
from gatedrnn.studies.parsing.evaluation import DEFAULT_BASELINES
from gatedrnn.training.run import Run, load_runs
from gatedrnn.trees import ALGORITHMS, KEEP_RULES, Gold, gold_tree, sentence_f1

Voters = dict[tuple[str, Any, str], Any]
"""Trees of every gold sentence by run, layer and gate; a grammar has neither."""

_DRAWN = 8  # sentences of a report, of so many words
_FEWEST, _MOST = 8, 20


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, which gold trees, and how trees are read and scored."""

    runs: tuple[str, ...] = place("RUN", "folder of a trained run; several vote; none to score only baselines", ())
    treebank: str = required("gold trees in Penn brackets, .gz too", "FILE")
    layer: tuple[str, ...] = option((), f"repeatable: {LAYER_TOLD}", "N")
    gate: tuple[str, ...] = option((), f"repeatable: {GATE_TOLD}", "NAME")
    algorithm: str = option("unbiased", ALGORITHM_TOLD, choices=ALGORITHMS)
    weight: tuple[str, ...] = weight_option()
    mapping: str | None = mapping_option("[the run's]")
    select: str | None = option(None, "choose each run's layer by its F1 on the gold trees of --dev", "layer=auto")
    dev: str | None = option(None, "gold trees for --select", "FILE")
    baseline: tuple[str, ...] = option(
        (), f"baseline to score, repeatable: {', '.join(BASELINE_NAMES)} [all but balanced_up]", "NAME"
    )
    max_words: int | None = option(None, "score, and select on, only sentences of at most so many words")
    words: str | None = option(None, "rule for the words that count [the run's, or ptb]", choices=tuple(KEEP_RULES))
    skip_bad: bool = option(
        False, "skip trees that cannot be read or are too long for a grammar, list them, and score the others"
    )
    bootstrap: int = option(0, "also print 95 % intervals, from N bootstrap samples of the sentences", "N")
    by_length: bool = option(False, "also print F1 by sentence length")
    out: str | None = option(None, "folder to write report.html, results.json and figures to", "DIR")


def run(options: Options) -> Found:
    """Scores of the runs' trees and of baselines; `--out` is written. Raises: ArgumentError: options that do not fit."""
    told = _checked(options)
    runs = load_runs(options.runs, PARSERS)
    if runs and all(map(is_grammar, runs)):
        check_gates_are_read(options)
    families = [*(run.config.task for run in runs), *([PRIOR] if PRIOR in told else [])]
    voter_weights(families, told)  # which refuses others
    words = _same_words(runs, options.words)
    bad: list[DataError] = []
    cut = _same_cut(runs)

    def read(file: str) -> list[Gold]:
        return [gold_tree(tree, words, cut) for tree in read_treebank(file, bad if options.skip_bad else None)]

    every = read(options.treebank)
    if any(map(is_grammar, runs)):
        every = _parsable(every, bad, options)
    kept = [k for k, tree in enumerate(every) if options.max_words is None or len(tree) <= options.max_words]
    gold = [every[k] for k in kept]
    sources, selection = _sources(runs, read, options)
    voters = _voters(runs, sources, gold, options)
    ballot = _ballot(voters, runs, gold, told)
    baselines, limit = options.baseline or DEFAULT_BASELINES, options.max_words

    def f1(trees: list[Any]) -> dict[str, float | None]:
        placed = _among(trees, kept, every)
        return evaluate_parsing(every, placed, max_words=limit, baselines=()).scores["model"]

    trees = {a: ballot.trees(a) for a in ALGORITHMS} if ballot else {}
    chosen = trees.get(options.algorithm)
    placed = None if chosen is None else _among(chosen, kept, every)
    result = evaluate_parsing(every, placed, max_words=limit, baselines=baselines, samples=options.bootstrap)
    parts = by_length(every, placed, baselines, limit) if options.by_length or options.out else {}
    record = _head(result, parts, words, runs, options) | _of_voters(voters, ballot, f1, options) | selection
    record |= {"skipped": [str(error) for error in bad]} if options.skip_bad else {}
    rows = _rows(voters, ballot, trees, f1) + [(in_words(name), result.scores[name]) for name in baselines]
    if options.out:
        drawn = list(_drawn(runs, voters, gold, chosen, options)) if runs else []
        write_report(Path(options.out), record, rows, drawn, options)
    return Found(record, rows)


def show(found: Found, options: Options) -> None:
    """Tables, and what to open."""
    print_scores(found.record, found.more, options)


def _checked(options: Options) -> dict[str, float]:
    """The weights of families. Raises: ArgumentError: one of them, or another option, is wrong, whatever the runs are."""
    if not options.runs and not options.baseline:
        raise ArgumentError("eval-parsing", "needs a RUN or --baseline", "neither", "Try --baseline right")
    for name in options.baseline:
        one_of("baseline", name, BASELINE_NAMES)
    if options.max_words is not None:
        positive_int("max_words", options.max_words)
    positive_int("bootstrap", options.bootstrap, minimum=0)
    told = read_weights(options.weight)
    if told and not options.runs:
        raise ArgumentError("--weight", "needs a RUN", "none", "Name the runs that vote")
    return told


def _parsable(gold: list[Gold], bad: list[DataError], options: Options) -> list[Gold]:
    """The trees without those that are scored and too long for a grammar, which `bad` receives with `--skip-bad`.

    Raises: DataError: there is one, without `--skip-bad`.
    """
    kept: list[Gold] = []
    for tree in gold:
        if LONGEST < len(tree) <= (options.max_words or len(tree)):
            rule, advice = f"must have at most {LONGEST} words for a grammar", "Add --skip-bad, or --max-words"
            begins = " ".join(tree.words[:5])
            error = DataError(f"{options.treebank}, tree of {begins!r} …", rule, len(tree), f"{advice} {LONGEST}")
            if not options.skip_bad:
                raise error
            bad.append(error)
        else:
            kept.append(tree)
    return kept


def _among(trees: list[Any], kept: list[int], gold: list[Gold]) -> list[Any]:
    """Trees of the sentences `kept`, by number, among all of them; the others are not scored and have no spans."""
    found: list[Any] = [set() for _ in gold]
    for k, spans in zip(kept, trees, strict=True):
        found[k] = spans
    return found


def _same_words(runs: list[Run], named: str | None) -> str:
    """The rule of which words count: `named`, else the runs' own. Raises: ArgumentError: the runs' own differ."""
    own = sorted({run.config.data.words for run in runs}) or ["ptb"]
    if named is None and len(own) > 1:
        raise ArgumentError(
            "--words", "must be given where runs have different rules", ", ".join(own), "Add --words ptb"
        )
    return named or own[0]


def _same_cut(runs: list[Run]) -> Callable[[str], list[str]] | None:
    """What cuts a treebank's words into characters, where the runs' words are. Raises: ArgumentError: only some runs' are."""
    tokenize = {run.vocabulary.tokenize for run in runs}
    if "characters" not in tokenize:
        return None
    if len(tokenize) > 1:
        got = f"tokenize={', '.join(sorted(tokenize))}"
        raise ArgumentError("eval-parsing", "needs runs that all read characters, or none", got, "Score them apart")
    return runs[0].vocabulary.tokens


def _sources(
    runs: list[Run], read: Callable[[str], list[Gold]], options: Options
) -> tuple[list[list[tuple[Any, str]]], dict[str, Any]]:
    """Layers and gates of each run, and what a selection by gold trees found."""
    gates = [_gates(run, options) for run in runs]
    named = [layer_named(name) for name in options.layer or ()]
    if options.select is None:
        if options.dev is not None:
            raise ArgumentError("--dev", "needs --select", "none", "Add --select layer=auto, or drop --dev")
        layers = [[] if is_grammar(run) else named or [run.model.config.layer_of_trees] for run in runs]
        return [[(layer, gate) for gate in own for layer in ls] for own, ls in zip(gates, layers, strict=True)], {}
    if options.select != "layer=auto":
        raise ArgumentError("--select", "must be layer=auto", options.select, "Or choose layers with --layer")
    if options.dev is None or named or not runs:
        got = "no --dev" if options.dev is None else "--layer too" if named else "no RUN"
        raise ArgumentError(
            "--select", "needs a RUN, --dev FILE with gold trees, and no --layer", got, "Fix the options"
        )
    dev = [tree for tree in read(options.dev) if len(tree) <= (options.max_words or len(tree))]
    if not dev:
        rule = f"must hold a tree of at most {options.max_words} words"
        raise DataError(options.dev, rule, "longer ones only", "Raise --max-words, or give another --dev")
    sources, each = [], {}
    for run, own in zip(runs, gates, strict=True):
        sources.append([])
        for gate in own:
            how = {"gate": gate, "mapping": mapping_of(run, options)}
            by = layers_by_gold(run.model, run.vocabulary, dev, options.algorithm, **how)
            sources[-1].append((next(iter(by)), gate))
            name = str(run.folder) if len(own) == 1 else f"{run.folder}, {gate}"
            each[name] = {"layer": next(iter(by)), "B": {str(layer): value for layer, value in by.items()}}
    return sources, {"selection": {"treebank": options.dev, "gold_trees_used": True, "runs": each}}


def _gates(run: Run, options: Options) -> tuple[str, ...]:
    """The gates that a run is read by; none of a grammar."""
    return () if is_grammar(run) else tuple(dict.fromkeys(options.gate)) or (run.model.config.tree_gate,)


def _voters(runs: list[Run], sources: list[list[tuple[Any, str]]], gold: list[Gold], options: Options) -> Voters:
    found: Voters = {}
    for run, own in zip(runs, sources, strict=True):
        with status(f"reading {len(gold):,} sentences with {run.folder}", quiet=options.json):
            if is_grammar(run):
                trees = grammar_trees(run.model, run.vocabulary, gold, mapping_of(run, options))
                found[str(run.folder), None, ""] = trees
                continue
            for gate in dict.fromkeys(gate for _, gate in own):
                layers = [layer for layer, of in own if of == gate]
                how: dict[str, Any] = {"gate": gate, "mapping": mapping_of(run, options)}
                readings = read_gold(run.model, run.vocabulary, gold, layers, **how)
                found |= {(str(run.folder), layer, gate): induced_trees(readings, layer) for layer in layers}
    return found


def _ballot(voters: Voters, runs: list[Run], gold: list[Gold], told: dict[str, float]) -> Any:
    """The vote; None without voters. Raises: ArgumentError: weights that do not fit."""
    if not voters:
        return None
    tasks = {str(run.folder): run.config.task for run in runs}
    return Ballot(list(voters.values()), [tasks[folder] for folder, _, _ in voters], gold, told)


def _head(result: Any, parts: Any, words: str, runs: list[Run], options: Options) -> dict[str, Any]:
    mappings = sorted({mapping_of(run, options) for run in runs})
    head: dict[str, Any] = {"sentences": result.sentences, "algorithm": options.algorithm, "layer": None}
    gates = [*dict.fromkeys(gate for run in runs for gate in _gates(run, options))]
    head |= {"gate": gates[0] if len(gates) == 1 else gates or None, "max_words": result.max_words, "words": words}
    head |= {"mapping": mappings[0] if len(mappings) == 1 else mappings or None, "scores": result.scores}
    if result.intervals:
        head["intervals"] = result.intervals
    if parts:
        head["by_length"] = {
            name: {"sentences": one.sentences, "sentences_B": one.sentences_B, "scores": one.scores}
            for name, one in parts.items()
        }
    return head | {"depth": result.depth, "label_recall": result.recall}


def _of_voters(voters: Voters, ballot: Any, f1: Any, options: Options) -> dict[str, Any]:
    """The voters, their families' weights, and how well the others do without each."""
    layers = [layer for _, layer, _ in voters]
    weights = {"weights": ballot.by_family} if ballot and ballot.by_family else {}
    if len(voters) < 2:
        return {"layer": layers[0] if layers else None} | weights

    each: list[dict[str, Any]] = [
        {"run": run, "layer": layer, "gate": gate or None, "weight": weight, "scores": f1(trees[options.algorithm])}
        for ((run, layer, gate), trees), weight in zip(
            voters.items(), ballot.weights or [1.0] * len(voters), strict=True
        )
    ]
    if len(voters) > 2:
        for k, voter in enumerate(each):
            voter["without"] = f1(ballot.without(k).trees(options.algorithm))
    agreement = agreements([trees[options.algorithm] for trees in voters.values()], ballot.gold)
    return {"layer": layers, "voters": each, "agreement": agreement} | weights


def _rows(voters: Voters, ballot: Any, trees: Any, f1: Any) -> list[tuple[str, dict[str, float | None]]]:
    """Rows of the table of scores: each voter, and their consensus, by both algorithms where there are two."""
    several, gates = len({run for run, _, _ in voters}) > 1, {gate for _, _, gate in voters if gate}
    rows = []
    for (run, layer, gate), own in voters.items():
        if not gate:
            rows.append((f"{run if several else 'model'}, grammar", f1(own[ALGORITHMS[0]])))
            continue
        source = f"layer {layer}" if len(gates) == 1 else f"layer {layer}, {in_words(gate)}"
        name = f"{run if several else 'model'}, {source}"
        rows += [(f"{name}, {a}", f1(own[a])) for a in ALGORITHMS]
    if ballot and (len(voters) > 1 or ballot.by_family):
        name = f"consensus of {len(voters)}{weights_told(ballot.by_family)}"
        rows += [(f"{name}, {a}", f1(trees[a])) for a in ALGORITHMS]
    return rows


def _drawn(runs: list[Run], voters: Voters, gold: list[Gold], trees: Any, options: Options) -> Iterator[dict[str, Any]]:
    """The first sentences of a middle length, as many as a report draws; gates of the first run that has any."""
    most = min(_MOST, options.max_words or _MOST)
    middle = [k for k, tree in enumerate(gold) if _FEWEST <= len(tree) <= most]
    chosen = (middle or [k for k, tree in enumerate(gold) if 1 < len(tree) <= most])[:_DRAWN]
    shown = [gold[k] for k in chosen]
    for k, tree, seen in zip(chosen, shown, _seen(runs, voters, shown, options), strict=True):
        whole = {tree.whole}
        yield {
            "words": tree.words,
            "gold": tree.labelled,
            "induced": sorted(trees[k]),
            **seen,
            "f1": 100 * sentence_f1(trees[k] - whole, tree.spans - whole),
        }


def _seen(runs: list[Run], voters: Voters, gold: list[Gold], options: Options) -> list[dict[str, Any]]:
    """Gates and distances of each sentence in the first run that has them; none where every run is a grammar."""
    run = next((run for run in runs if not is_grammar(run)), None)
    if run is None:
        return [{"gates": {}, "distances": []} for _ in gold]
    layer, gate = next((layer, gate) for folder, layer, gate in voters if folder == str(run.folder))
    every = range(1, len(run.model.layers) + 1)
    how: dict[str, Any] = {"gate": gate, "mapping": mapping_of(run, options), "keep_gates": True}
    readings = read_gold(run.model, run.vocabulary, gold, [*every, layer], **how)
    return [
        {
            "gates": {f"layer {one}": reading.gates[one].tolist() for one in reversed(every)},
            "distances": reading.distances[layer],
        }
        for reading in readings
    ]
