"""Findings in `eval-parsing` and `compress`, each held by a test."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from terminal import call, fails, record, works

from gatedrnn.data import DataConfig, Vocabulary, write_corpus
from gatedrnn.data.sentences import GrammarDataConfig
from gatedrnn.data.verb_final import write_parallel
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.grammar import Grammar, GrammarConfig
from gatedrnn.tasks import GrammarInduction
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import write_trained

LETTERS = Vocabulary(["<unk>", "<eos>", *"abcdefghij"])
SHORT = "(S (NN a) (NP (NN b) (NN c)))\n"
LONG = f"(S {'(NN a) ' * 301})\n"


@pytest.fixture
def place(tmp_path):
    """A folder with two runs that were never trained, `grammar` and `onlstm`, and gold trees, one of them too long."""
    torch.manual_seed(1)
    sizes = GrammarConfig(12, nonterminals=3, preterminals=4, state_size=5)
    config = RunConfig(GrammarDataConfig(), sizes, GrammarInduction.training, GrammarInduction.name)
    write_trained(tmp_path / "grammar", config, Grammar(sizes), LETTERS)
    own = LanguageModelConfig(
        cell="onlstm", vocabulary_size=12, embedding_size=8, hidden_sizes=(8,), options={"chunk_size": 2}
    )
    training = TrainingConfig(device="cpu", backend="reference")
    write_trained(tmp_path / "onlstm", RunConfig(DataConfig(), own, training), LanguageModel(own), LETTERS)
    (tmp_path / "gold.trees").write_text(SHORT + LONG + SHORT * 2)
    (tmp_path / "short.trees").write_text(SHORT * 3)
    return tmp_path


def test_sentences_that_are_not_scored_are_not_parsed(place):
    found = record("eval-parsing", place / "grammar", "--treebank", place / "gold.trees", "--max-words", 40)
    alone = record("eval-parsing", place / "grammar", "--treebank", place / "short.trees", "--max-words", 40)
    assert found["sentences"] == 3 and found["scores"]["model"] == alone["scores"]["model"]
    runs = (place / "grammar", place / "onlstm")
    both = record("eval-parsing", *runs, "--treebank", place / "gold.trees", "--max-words", 40)
    assert both["agreement"] == record("eval-parsing", *runs, "--treebank", place / "short.trees")["agreement"]
    rest = ("--max-words", 3, "--by-length", "--out", place / "report")
    assert set(record("eval-parsing", *runs, "--treebank", place / "gold.trees", *rest)["by_length"]) == {"1–10"}


def test_the_random_baseline_is_the_same_beside_a_model_and_alone(place):
    how = ("--treebank", place / "gold.trees", "--max-words", 40, "--baseline", "random")
    with_model, alone = record("eval-parsing", place / "grammar", *how), record("eval-parsing", *how)
    assert with_model["scores"]["random"] == alone["scores"]["random"]


def test_a_tree_that_is_too_long_for_a_grammar_is_named_or_left_out(place):
    command = ("eval-parsing", place / "grammar", "--treebank", place / "gold.trees")
    rule = "gold.trees, tree of 'a a a a a' …: must have at most 300 words for a grammar; got 301."
    assert f"{rule} Add --skip-bad, or --max-words 300." in fails(*command)
    found = record(*command, "--skip-bad")
    assert found["sentences"] == 3 and len(found["skipped"]) == 1 and rule in found["skipped"][0]
    other = record("eval-parsing", place / "onlstm", "--treebank", place / "gold.trees", "--skip-bad")
    assert (other["sentences"], other["skipped"]) == (4, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-words", "0"], "max_words: must be a positive integer; got 0"),
        (["--bootstrap", "-1"], "bootstrap: must be an integer of at least 0; got -1"),
        (["--baseline", "rigth"], "upper_bound; got 'rigth'. Did you mean 'right'?"),
        (["--weight", "grammar=0"], "--weight: must be FAMILY=NUMBER"),
        (["--weight", "language_modelling=1"], "weight: must name a family among the voters: grammar, right"),
    ],
)
def test_a_mistake_in_the_options_is_found_before_anything_is_read(place, monkeypatch, options, said):
    monkeypatch.setattr("gatedrnn.cli.commands.eval_parsing.read_treebank", lambda *_: pytest.fail("it was read"))
    line = fails("eval-parsing", place / "grammar", "--treebank", place / "gold.trees", *options)
    assert said in line


# ---------------------------------------------------------------- copies of a run of a built-in text

SMALL = [
    "--model.embedding_size",
    "8",
    "--model.hidden_sizes",
    "[8]",
    "--training.epochs",
    "1",
    "--training.device",
    "cpu",
]


@pytest.fixture
def built_in(tmp_path, monkeypatch):
    """Trains on a small built-in text of a task, in the folder `a` of the current one."""
    few = {"train": 60, "valid": 20, "test": 20}
    monkeypatch.setattr("gatedrnn.tasks.of_corpus.write_corpus", lambda *given: write_corpus(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.translation.write_parallel", lambda *given: write_parallel(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", {split: (count, range(3)) for split, count in few.items()})
    monkeypatch.chdir(tmp_path)

    def train(task, *more):
        sides = ["--model.decoder_sizes", "[8]"] if task == "translation" else []
        works("train", "--task", task, *SMALL, *sides, "--model.cell", "lstm", *more, "--out", "a")
        return tmp_path / "a"

    return train


def data_of(run):
    return yaml.safe_load((Path(run) / "config.yaml").read_text())["data"]


@pytest.mark.parametrize("retrain", [[], ["--retrain", "1"]], ids=["at once", "retrained"])
@pytest.mark.parametrize("task", ["language_modelling", "inference", "translation"])
def test_a_compressed_run_of_a_built_in_text_is_evaluated_as_the_run_is(built_in, task, retrain):
    run = built_in(task)
    assert data_of(run)["folder"] is None
    works("compress", "a", "--method", "svd", "--rank", 4, *retrain, "--out", "b")
    data = data_of("b")
    level = {"level": "word"} if task == "translation" else {}  # with a folder, its default is subword
    assert data == data_of(run) | {"folder": str(run / "text")} | level
    counted = {"language_modelling": "tokens", "inference": "pairs", "translation": "sentences"}[task]
    assert record("evaluate", "b")[counted] == record("evaluate", "a")[counted]
    works("compress", "b", "--method", "int8", "--out", "c")
    assert data_of("c") == data


def test_a_compressed_run_whose_text_is_gone_names_none(built_in):
    run = built_in("language_modelling")
    shutil.rmtree(run / "text")
    works("compress", "a", "--method", "int8", "--out", "b")
    assert data_of("b") == data_of(run)


def test_settings_that_retraining_does_not_read_do_not_stop_it(built_in, monkeypatch):
    built_in("language_modelling", "--training.plateau_factor", "0.3", "--training.plateau_threshold", "0.2")
    command = ["compress", "a", "--method", "svd", "--rank", "4", "--retrain", "2", "--out", "b"]
    with monkeypatch.context() as patch:  # as an earlier version began, until it was interrupted
        patch.setattr("gatedrnn.cli.commands.compress.unread", lambda *_: {})
        patch.setattr("gatedrnn.cli.commands.compress.with_text", lambda run: run.config)
        patch.setattr("gatedrnn.training.loop.check_read", lambda *_: None)
        patch.setattr("gatedrnn.training.loop.Loop._budget", lambda _: "interrupted")
        patch.setattr("gatedrnn.training.loop.Loop._out_of_time", lambda _: True)
        assert call(*command)[0] == 130
    works(*command, "--resume")
    training = yaml.safe_load(Path("b/config.yaml").read_text())["training"]
    assert training["plateau_factor"] == 0.3 and training["schedule"] == "cosine"
    command[-1] = "c"
    works(*command)
    training = yaml.safe_load(Path("c/config.yaml").read_text())["training"]
    assert (training["plateau_factor"], training["plateau_threshold"]) == (0.5, 0.01)
