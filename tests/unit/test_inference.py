"""A classifier of pairs, and the task that trains one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_resume import CutError, Quiet, same_end
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import write_corpus
from gatedrnn.data.config import PairDataConfig
from gatedrnn.data.labelled import LabelledPairs, find_pairs
from gatedrnn.data.logic import make_pairs, write_pairs
from gatedrnn.data.verb_final import write_parallel
from gatedrnn.gates import Gates
from gatedrnn.models import PairClassifier, PairClassifierConfig
from gatedrnn.tasks import TASKS, Inference
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.inference import accuracy
from gatedrnn.training.config import RunConfig
from gatedrnn.training.loop import train
from gatedrnn.training.run import load_run, read_metrics

MODEL = PairClassifierConfig(cell="lstm", embedding_size=8, hidden_sizes=(8,))
TRAINING = TrainingConfig(epochs=3, batch_size=16, learning_rate=0.01, device="cpu", evaluation_batch_size=7)
SIZES = {"vocabulary_size": 13, "classes": 7}


@pytest.fixture
def task():
    return Inference({"train": make_pairs(90, 1), "valid": make_pairs(40, 2), "test": make_pairs(40, 3)})


def config_for(**training):
    return RunConfig(PairDataConfig(), MODEL, replace(TRAINING, **training), "inference")


def model_of(cell="lstm", **settings):
    torch.manual_seed(1)
    config = {"cell": cell, "embedding_size": 6, "hidden_sizes": (8, 10), **SIZES, **settings}
    return PairClassifier(PairClassifierConfig(**config)).eval()


@pytest.mark.parametrize("cell", ["lstm", "gru", "onlstm", "g2lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_scores_are_those_of_each_pair_by_itself(cell, bidirectional):
    options = {"options": {"chunk_size": 2}} if cell == "onlstm" else {}
    model = model_of(cell, bidirectional=bidirectional, **options)
    left, right = torch.randint(13, (5, 3)), torch.randint(13, (7, 3))
    lengths = torch.tensor([5, 1, 3]), torch.tensor([2, 7, 1])
    scores = model(left, right, *lengths)
    assert scores.shape == (3, 7)
    for b in range(3):
        one, two = (side[: n[b], b : b + 1] for side, n in zip((left, right), lengths, strict=True))
        alone = model(one, two, *(torch.tensor([len(side)]) for side in (one, two)))
        torch.testing.assert_close(scores[b : b + 1], alone)


def test_the_head_is_the_published_one():
    model = model_of("gru")
    tokens, lengths = torch.randint(13, (4, 2)), torch.tensor([4, 2])
    h = F.embedding(tokens, model.encoder.embedding.weight)
    for layer in model.encoder.layers:
        h, last = layer(h, lengths=lengths)
    one, two = last[0]
    joint = torch.cat([one, two, one * two, (one - two).abs()])
    expected = model.head[4](F.elu(model.head[1](joint)))
    sides = tokens[:, :1], tokens[:2, 1:]
    torch.testing.assert_close(model(*sides, lengths[:1], lengths[1:])[0], expected)


def test_a_model_is_saved_and_loaded(tmp_path):
    model = model_of(gates=Gates(temperature=0.5, evaluation_temperature=0.5))
    model.save_pretrained(tmp_path)
    again = PairClassifier.from_pretrained(tmp_path)
    assert again.config == model.config
    given = torch.randint(13, (4, 2)), torch.randint(13, (3, 2)), torch.tensor([4, 2]), torch.tensor([3, 3])
    assert torch.equal(again(*given), model(*given))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cell": "lstn"}, "model.cell: must be a registered cell; got 'lstn'"),
        ({"head_size": -1}, "model.head_size: must be"),
        ({"classes": 0}, "model.classes: must be"),
        ({"head_dropout": 2}, "model.head_dropout: must"),
        ({"hidden_sizes": ()}, "model.hidden_sizes: must have at least one layer"),
        ({"options": {"chunk_size": 3}}, "model.options.chunk_size: applies only to onlstm"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ArgumentError, match=words.replace(".", r"\.")):
        PairClassifierConfig(**{"cell": "lstm", **settings})


def test_a_model_needs_the_sizes_of_its_data():
    with pytest.raises(ArgumentError, match="vocabulary_size: must be set to build a model"):
        PairClassifier(PairClassifierConfig())


def test_a_training_cut_off_again_and_again_ends_in_the_same_bits(task, tmp_path):
    ends_in_the_same_bits(config_for(checkpoint_minutes=1e-9), task, tmp_path)


def ends_in_the_same_bits(config, task, tmp_path):
    """A training cut off three times beside a whole one."""
    outcome = train(config, task, tmp_path / "whole", Quiet())
    for at in (1, 4, 9):
        torch.rand(at)
        with pytest.raises(CutError):
            train(config, task, tmp_path / "cut", Quiet(at), resume=True)
    assert train(config, task, tmp_path / "cut", Quiet(), resume=True) == outcome
    same_end_of_pairs(tmp_path / "whole", tmp_path / "cut")


def same_end_of_pairs(one, two):
    for folder in (one, two):  # what differs between any two runs, under another name here
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace("pairs_per_second", "tokens_per_second"))
    same_end(one, two)


def test_averaging_finetuning_and_annealing_know_no_task(task, tmp_path):
    model = replace(MODEL, gates=Gates(temperature=0.9, noise_probability=0.2))
    settings = {"optimizer": "sgd", "average_epoch": 1, "finetune_epochs": 1, "final_temperature": 0.5, "epochs": 2}
    config = replace(config_for(**settings, learning_rate=1.0), model=model)
    assert train(config, task, tmp_path / "run", Quiet()).epochs == 3
    assert [record["averaged"] for record in read_metrics(tmp_path / "run")] == [False, True, True]


def test_a_run_learns_and_is_read_again(tmp_path):
    pairs = make_pairs(600, 1, operators=range(2), variables=2)
    task = Inference({"train": pairs, "valid": pairs[:200]})
    model = replace(MODEL, hidden_sizes=(24,), input_dropout=0, head_dropout=0)
    config = replace(config_for(epochs=30, schedule="constant"), model=model)
    outcome = train(config, task, tmp_path, Quiet())
    assert outcome.best > 80
    records = read_metrics(tmp_path)
    assert outcome.best == max(record["valid_accuracy"] for record in records)
    run = load_run(tmp_path, None)
    found = accuracy(run.model, LabelledPairs(pairs[:200], run.vocabulary))
    assert found.accuracy == outcome.best and found.pairs == 200
    with pytest.raises(CheckpointError, match="must be a run of language_modelling; got a run of inference"):
        load_run(tmp_path)


def test_accuracy_by_operators(task):
    model, pairs = model_of(), task.pairs["test"]
    found = accuracy(model, pairs, batch_size=9)
    alone = accuracy(model, pairs, batch_size=1)
    assert (found.accuracy, found.by_operators) == (alone.accuracy, alone.by_operators)
    assert found.loss_nats == pytest.approx(alone.loss_nats)
    assert sum(group["pairs"] for group in found.by_operators.values()) == found.pairs == len(pairs)
    right = sum(group["accuracy"] * group["pairs"] for group in found.by_operators.values())
    assert right / len(pairs) == pytest.approx(found.accuracy)
    assert found.majority == 100 * np.bincount(pairs.labels).max() / len(pairs)
    many = LabelledPairs(make_pairs(5, 1, operators=[12, 15]), task.vocabulary)
    assert list(accuracy(model, many).by_operators) == [12]


def test_scores_that_are_not_finite_are_refused(task):
    model = model_of()
    torch.nn.init.constant_(model.head[4].bias, torch.nan)
    with pytest.raises(CheckpointError, match="must come from finite scores"):
        accuracy(model, task.pairs["test"])


def test_pairs_of_more_operators_are_left_out_of_training_alone(tmp_path):
    for split, seed in (("train", 1), ("valid", 2), ("test", 3)):
        write_pairs(tmp_path / f"{split}.tsv", make_pairs(60, seed))
    task = Inference.open(PairDataConfig(operators=3), tmp_path)
    assert {split: int(pairs.operators.max()) for split, pairs in task.pairs.items()} == {
        "train": 3,
        "valid": 3,
        "test": 6,
    }
    data, valid = PairDataConfig(operators=3), task.pairs["valid"]  # what compress measures is what training validates
    measured = [Inference.text(task.vocabulary, data, tmp_path, split) for split in ("valid", "test")]
    assert (len(measured[0]), int(measured[1].operators.max())) == (len(valid), 6)
    named = Inference.text(task.vocabulary, data, tmp_path, "valid", tmp_path / "valid.tsv")
    assert len(named) == 60 > len(valid)
    write_pairs(tmp_path / "valid.tsv", make_pairs(60, 2, operators=[5]))
    with pytest.raises(DataError, match=r"valid\.tsv: must hold a pair of at most 3 operators; got none"):
        Inference.open(PairDataConfig(operators=3), tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_makes_itself_depends_on_the_seed_alone(name, tmp_path, monkeypatch):
    few = {"train": 300, "valid": 30, "test": 30}
    monkeypatch.setattr("gatedrnn.tasks.of_corpus.write_corpus", lambda *given: write_corpus(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.translation.write_parallel", lambda *given: write_parallel(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", {split: (count, range(5)) for split, count in few.items()})
    for folder, seed in (("one", 1), ("same", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        TASKS[name].make(tmp_path / folder, seed, TASKS[name].data())
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "same").iterdir()}
    assert files != {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}


def test_sections_of_another_task_are_refused():
    with pytest.raises(ArgumentError, match="model: must be a PairClassifierConfig; got LanguageModelConfig"):
        RunConfig(data=PairDataConfig(), task="inference")
    with pytest.raises(ArgumentError, match=r"unknown name; got 'inferense'\. Did you mean 'inference'"):
        RunConfig(task="inferense")


def test_only_files_of_the_named_splits_are_read(tmp_path):
    for name in (
        "train.tsv",
        "train.tsv.gz",
        "train_old.tsv",
        "dev.tsv.gz",
        "valid2.tsv",
        "test.7.tsv",
        "test.7.tsv.gz",
        "test.8.tsv.gz",
    ):
        (tmp_path / name).touch()
    found = {split: [path.name for path in paths] for split, paths in find_pairs(tmp_path).items()}
    assert found == {"train": ["train.tsv"], "valid": ["dev.tsv.gz"], "test": ["test.7.tsv", "test.8.tsv.gz"]}


def test_pairs_of_other_labels_have_another_checksum(task):
    pairs = make_pairs(90, 1)
    label = next(pair.label for pair in pairs if pair.label != pairs[0].label)
    other = [replace(pairs[0], label=label), *pairs[1:]]
    assert Inference({"train": pairs, "valid": pairs}).checksum("train") == task.checksum("train")
    assert Inference({"train": other, "valid": pairs}).checksum("train") != task.checksum("train")


@torch.no_grad()
def test_gates_are_read_at_every_word_of_both_formulae(task):
    torch.manual_seed(1)
    model, pairs = PairClassifier(task.complete(MODEL)).eval(), task.pairs["test"]
    found = list(Inference.gates(model, task.vocabulary, pairs, 6))
    words = int(pairs.left.lengths_N.sum() + pairs.right.lengths_N.sum())
    assert sum(len(layers[0].trace_MN["forget_gate"]) for layers in found) == words
    assert Inference.rate(model, task.vocabulary, pairs, 7)[1] == words
