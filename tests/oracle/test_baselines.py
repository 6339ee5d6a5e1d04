"""Every figure of ../shared/data/baselines.json, from the same pipeline that scores a model, and by the command."""

import json
import random
import statistics
from functools import cache

import pytest

from gatedrnn.cli.main import main
from gatedrnn.data import read_treebank
from gatedrnn.studies.parsing import evaluate_parsing
from gatedrnn.studies.parsing.evaluation import RANDOM_SEEDS
from gatedrnn.trees import BASELINES, gold_tree, random_spans, score, upper_bound

SETS = {
    "gum dev": ["gum/dev.trees"],
    "gum test": ["gum/test.trees"],
    "wsj-sample dev": ["wsj-sample/dev.trees"],
    "wsj-sample test": ["wsj-sample/test.trees"],
    "wsj-sample all": ["wsj-sample/train.trees", "wsj-sample/dev.trees", "wsj-sample/test.trees"],
}
PARSERS = {
    "left": "left",
    "right": "right",
    "balanced": "balanced",
    "balanced-up": "balanced_up",
    "random": "random",
    "upper bound": "upper_bound",
}
KEYS = {"A": "A", "AW": "AW", "B": "B", "Bc": "corpus", "nA": "sentences_A", "nB": "sentences_B"}


@cache
def gold_of(path):
    return [gold_tree(tree) for tree in read_treebank(path)]


@cache
def predictions(paths, parser):
    """The parser's spans of all sentences, once for each of its seeds."""
    gold = [g for path in paths for g in gold_of(path)]
    if parser == "random":
        return [[random_spans(len(g), rng) for g in gold] for rng in map(random.Random, (1, 2, 3, 4, 5))]
    if parser == "upper_bound":
        return [[upper_bound(len(g), g.spans) for g in gold]]
    return [[BASELINES[parser](len(g)) for g in gold]]


def figures(shared_file):
    listed = json.loads(shared_file("data/baselines.json").read_text())
    return {(entry["set"], entry["max_words"], entry["parser"]): entry for entry in listed}


def test_no_figure_is_left_out(shared_file):
    assert set(figures(shared_file)) == {(s, m, p) for s in SETS for m in (None, 10) for p in PARSERS}
    assert RANDOM_SEEDS == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("max_words", [None, 10])
@pytest.mark.parametrize("name", SETS)
def test_baseline(shared_file, name, max_words, parser):
    wanted = figures(shared_file)[name, max_words, parser]
    paths = tuple(shared_file(f"data/{path}") for path in SETS[name])
    gold = [g for path in paths for g in gold_of(path)]
    chosen = [k for k, g in enumerate(gold) if len(g) and (max_words is None or len(g) <= max_words)]
    runs = [score([run[k] for k in chosen], [gold[k] for k in chosen]) for run in predictions(paths, PARSERS[parser])]
    for key, field in KEYS.items():
        values = [getattr(run, field) for run in runs]
        assert statistics.fmean(values) == pytest.approx(wanted[key], abs=0.001), key
        if "sd" in wanted:
            assert statistics.pstdev(values) == pytest.approx(wanted["sd"][key], abs=0.001), key
    assert ("sd" in wanted) == (parser == "random")


@pytest.mark.parametrize("max_words", [None, 10])
@pytest.mark.parametrize("name", ["gum test", "wsj-sample test"])
def test_the_study_reports_these_figures(shared_file, name, max_words):
    (path,) = (shared_file(f"data/{path}") for path in SETS[name])
    result = evaluate_parsing(gold_of(path), max_words=max_words, baselines=tuple(PARSERS.values()))
    for parser, key in PARSERS.items():
        wanted = figures(shared_file)[name, max_words, parser]
        assert result.sentences == wanted["nA"]
        for column in ("A", "AW", "B", "Bc"):
            assert result.scores[key][KEYS[column]] == pytest.approx(wanted[column], abs=0.001), (parser, column)


@pytest.mark.parametrize("max_words", [None, 10])
@pytest.mark.parametrize("name", ["gum dev", "wsj-sample test"])  # of the others, `test_baseline` has the figures
def test_the_command_prints_these_figures(shared_file, tmp_path, capsys, name, max_words):
    treebank = tmp_path / "set.trees"
    treebank.write_bytes(b"".join(shared_file(f"data/{path}").read_bytes() for path in SETS[name]))
    arguments = ["eval-parsing", "--treebank", str(treebank), "--words", "ptb", "--json"]
    arguments += [option for parser in PARSERS.values() for option in ("--baseline", parser)]
    assert main(arguments + ([] if max_words is None else ["--max-words", str(max_words)])) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["scores"]) == list(PARSERS.values()) and found["max_words"] == max_words
    for parser, key in PARSERS.items():
        wanted = figures(shared_file)[name, max_words, parser]
        assert found["sentences"] == wanted["nA"]
        for column in ("A", "AW", "B", "Bc"):
            assert found["scores"][key][KEYS[column]] == pytest.approx(wanted[column], abs=0.01), (parser, column)
