"""Findings in the tasks, their data, their models and the plots, each held by a test."""

import importlib.util
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from letters import write_letters
from scripts import ROOT

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import Corpus, DataConfig, find_splits
from gatedrnn.data.batching import Window
from gatedrnn.data.config import PairDataConfig, ParallelDataConfig
from gatedrnn.data.labelled import PairBatch, find_pairs
from gatedrnn.data.logic import make_splits
from gatedrnn.data.parallel import TextPair, TranslationBatch, read_parallel
from gatedrnn.data.sentences import SentenceBatch
from gatedrnn.models import LanguageModelConfig, TranslationConfig, TranslationModel
from gatedrnn.models.beam import Beam, translate
from gatedrnn.plots.accuracy import by_operators
from gatedrnn.plots.compression import change_by_bytes
from gatedrnn.tasks import GrammarInduction, Inference, LanguageModelling, Translation
from gatedrnn.tasks.cache import Cache
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.task import check_read
from gatedrnn.training.config import RunConfig
from gatedrnn.training.loop import _optimizer, train
from gatedrnn.training.run import continued

FEW = {"train": (300, range(5)), "valid": (40, range(5)), "test": (60, range(9))}
NAMED = {"data": ParallelDataConfig(level="word", joint=False, min_count=1), "text": TextPair(["a b", "b"], ["A", "B"])}


class Quiet:
    """A display that says nothing."""

    def start_epoch(self, epoch, steps):
        pass

    def step(self, done, loss_nats, per_second):
        pass

    def end_epoch(self, record):
        pass


def benchmark(name):
    """A benchmark as a module."""
    spec = importlib.util.spec_from_file_location(f"findings_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- built-in formulae


def test_no_made_pair_is_in_two_splits_and_each_split_has_pairs_without_an_operator():
    made = make_splits(FEW, 1)
    assert {split: len(pairs) for split, pairs in made.items()} == {"train": 300, "valid": 40, "test": 60}
    every = [(pair.left, pair.right) for pairs in made.values() for pair in pairs]
    assert len({*every}) == len(every) == 400
    assert all({0, 1, 4} <= {pair.operators for pair in pairs} for pairs in made.values())
    assert made == make_splits(FEW, 1) != make_splits(FEW, 2)


def test_splits_that_ask_for_more_pairs_than_there_are_share_them():
    made = make_splits({split: (50, [0]) for split in FEW}, 1)
    assert [len(pairs) for pairs in made.values()] == [12, 12, 12]


def test_built_in_pairs_without_an_operator_can_be_trained_on_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", FEW)
    Inference.make(tmp_path, 1, PairDataConfig())
    task = Inference.open(PairDataConfig(operators=0), tmp_path)
    assert min(len(task.pairs["train"]), len(task.pairs["valid"])) > 0 and len(task.pairs["test"]) == 60


# ---------------------------------------------------------------- files of splits


def broken(path, kind):
    path.unlink(missing_ok=True)
    path.mkdir() if kind == "folder" else path.symlink_to("nothing")


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
@pytest.mark.parametrize("name", ["train.de", "valid.en", "test.de", "test_2016.de", "test.tsv"])
def test_a_side_of_parallel_text_that_is_no_file_is_refused(tmp_path, name, kind):
    for split in ("train", "valid"):
        for code in ("de", "en"):
            (tmp_path / f"{split}.{code}").write_text("ja\n")
    broken(tmp_path / name, kind)
    with pytest.raises(DataError, match=rf"{name}: must be a file; got something else\. Restore it, or remove it"):
        read_parallel(tmp_path, ParallelDataConfig(str(tmp_path), "de", "en"))


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
@pytest.mark.parametrize("name", ["train.tsv", "valid.tsv", "test.tsv", "test.7.tsv.gz"])
def test_a_split_of_pairs_that_is_no_file_is_refused(tmp_path, name, kind):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").touch()
    broken(tmp_path / name, kind)
    with pytest.raises(DataError, match=rf"{name}: must be a file; got something else"):
        find_pairs(tmp_path)


# ---------------------------------------------------------------- temperature


@pytest.mark.parametrize(("cache", "said"), [(None, "best on valid"), (Cache(), "best on valid, without cache and")])
def test_a_temperature_says_how_it_was_chosen(tmp_path, monkeypatch, cache, said):
    monkeypatch.setattr("gatedrnn.tasks.language_modelling.best_temperature", lambda *_: 0.9)
    corpus = Corpus(find_splits(write_letters(tmp_path / "text", "abc", 20, 5)), min_count=1)
    task = LanguageModelling(corpus)
    model = task.build(task.complete(LanguageModelConfig(cell="lstm", embedding_size=4, hidden_sizes=(4,))), "auto")
    text = Corpus({"text": corpus.files["valid"]}, corpus.vocabulary)
    how = {"batch_size": 1, "reset": False, "temperature": "auto", "cache": cache, "dynamic": None}
    told = LanguageModelling.evaluate(model, corpus.vocabulary, text, how | {"valid": text}).lines[-1]
    assert f"temperature 0.9 ({said}" in told and told.count("without cache and dynamic evaluation)") == bool(cache)


# ---------------------------------------------------------------- translation


def translator(**settings):
    torch.manual_seed(1)
    config = TranslationConfig(embedding_size=8, hidden_sizes=(8,), decoder_sizes=(8,), tied=False, **settings)
    return TranslationModel(replace(config, vocabulary_size=9, target_size=7)).eval()


def sources(*lengths):
    ids = torch.full((max(lengths), len(lengths)), 1)
    for b, length in enumerate(lengths):
        ids[: length - 1, b] = torch.arange(length - 1) % 7 + 2
    return ids, torch.tensor(lengths)


def test_no_translated_token_is_aligned_with_the_end_of_the_source():
    model, (source, lengths) = translator(), sources(4, 1, 2, 6)
    real = model.decode

    def at_the_end(given, inputs):
        """All attention where the source ends."""
        found = real(given, inputs)
        last = (~given.beyond_BS).sum(1) - 1
        return found._replace(attention=torch.nn.functional.one_hot(last, given.beyond_BS.shape[1]).float()[None])

    model.decode = at_the_end
    aligned = [best[0].alignment for best in translate(model, source, lengths, Beam(size=3))]
    assert all(0 <= place < max(1, n - 1) for n, each in zip(lengths.tolist(), aligned, strict=True) for place in each)
    assert any(aligned)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_scores_that_are_not_finite_are_refused(value):
    model, given = translator(), sources(3)
    with torch.no_grad():
        model.decoder.weight.fill_(value)
        model.output.bias.fill_(10.0)
    with pytest.raises(CheckpointError, match=r"translation\.scores: must be finite; got NaN or infinity"):
        translate(model, *given, Beam(size=2))


@pytest.mark.parametrize("size", [1001, 10**20])
def test_a_beam_is_at_most_a_thousand_wide(size):
    assert Beam(size=1000).size == 1000
    with pytest.raises(ArgumentError, match=r"beam\.size: must be at most"):
        Beam(size=size)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.ones(2, 3), r"must be integers \[T, B\]; got torch\.float32"),
        (torch.ones(6, dtype=torch.long), r"must be integers \[T, B\]; got torch\.int64 \[6\]"),
        (torch.ones(3, 2, dtype=torch.long), r"must have the inputs' shape \[2, 3\] and device cpu; got \[3, 2\]"),
        (torch.ones(2, 3, dtype=torch.long, device="meta"), r"must have .* and device cpu; got \[2, 3\] on meta"),
    ],
)
def test_targets_of_another_layout_are_refused(targets, said):
    model, inputs = translator(), torch.ones(2, 3, dtype=torch.long)
    given = (*sources(3, 2, 2), inputs, torch.tensor([2, 2, 2]))
    assert model(*given, targets_TB=inputs.int()).nats.isfinite()
    with pytest.raises(ArgumentError, match=rf"TranslationModel\.targets_TB: {said}"):
        model(*given, targets_TB=targets)


def test_sacrebleu_is_asked_for_before_anything_is_translated(monkeypatch):
    task = Translation({"train": NAMED["text"], "valid": NAMED["text"]}, NAMED["data"])
    for name in ("sacrebleu", "sacrebleu.metrics", "sacrebleu.metrics.bleu"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("gatedrnn.tasks.translation.translations", lambda *_: pytest.fail("it was translated"))
    with pytest.raises(ArgumentError, match="needs sacrebleu to score translations"):
        Translation.evaluate(None, task.languages, NAMED["text"], {"beam": None, "tokenize": None})


# ---------------------------------------------------------------- settings without an effect

WITHOUT = [
    (LanguageModelling, {"optimizer": "sgd", "betas": (0.8, 0.99)}, "betas: has no effect with optimizer: sgd"),
    (LanguageModelling, {"unit": "sentence", "sequence_length": 9}, "sequence_length: has no effect with unit: sent"),
    (Inference, {"schedule": "cosine", "plateau_factor": 0.3}, "plateau_factor: has no effect with schedule: cosine"),
    (Translation, {"schedule": "constant", "plateau_threshold": 0.1}, "plateau_threshold: has no effect with sched"),
]


@pytest.mark.parametrize(("task", "settings", "said"), WITHOUT)
def test_a_setting_without_an_effect_is_refused(task, settings, said):
    with pytest.raises(ArgumentError, match=rf"training\.{said}.*; got .*\. Leave it out"):
        check_read(task, replace(task.training, **settings))


def test_settings_with_an_effect_and_defaults_of_a_task_are_taken():
    check_read(LanguageModelling, TrainingConfig(betas=(0.8, 0.9), sequence_length=9, plateau_factor=0.3))
    check_read(GrammarInduction, replace(GrammarInduction.training, optimizer="sgd"))
    check_read(Translation, replace(Translation.training, schedule="cosine"))


def test_an_earlier_run_with_such_a_setting_is_resumed(tmp_path, monkeypatch):
    task = LanguageModelling(Corpus(find_splits(write_letters(tmp_path / "text", "abc", 20, 5)), min_count=1))
    training = TrainingConfig(epochs=1, optimizer="sgd", betas=(0.8, 0.99), batch_size=2, device="cpu")
    model = LanguageModelConfig(cell="lstm", embedding_size=4, hidden_sizes=(4,))
    config, out = RunConfig(DataConfig(), model, training), tmp_path / "run"
    with pytest.raises(ArgumentError, match=r"training\.betas: has no effect"):
        train(config, task, out, Quiet())
    with monkeypatch.context() as patch:
        patch.setattr("gatedrnn.training.loop.check_read", lambda *_: None)
        train(config, task, out, Quiet())
    again = continued(out, replace(config, training=replace(training, epochs=2)), {"training.epochs"})
    assert train(again, task, out, Quiet(), resume=True).epochs == 2


# ---------------------------------------------------------------- plots and benchmarks


def names(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_legends_name_runs_that_begin_with_an_underscore(tmp_path, monkeypatch):
    accuracy = {"majority": 53.0, "by_operators": {"0": {"accuracy": 100.0}}}
    (axes,) = by_operators({"_one": accuracy, "two": accuracy}).axes
    assert names(axes.get_legend()) == ["_one", "two"]
    rows = [{"scheme": name, "bytes": 9, "change_percent": 1.0} for name in ("original", "int8")]
    assert names(change_by_bytes({"_one": rows, "int8": rows}).legends[0]) == ["_one", "int8", "int8"]
    line = {"seconds": 60.0, "valid_perplexity": 100.0, "train_perplexity": 120.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    curves = benchmark("curves")
    monkeypatch.setattr(sys, "argv", ["curves.py", "--out", str(tmp_path / "x.svg"), f"_a={tmp_path}"])
    curves.main()
    assert names(curves.plt.gca().get_legend()) == ["_a, validation: 100.00", "_a, training"]
    curves.plt.close()


def test_the_perplexity_of_a_run_is_that_of_the_weights_it_holds(tmp_path):
    lines = [{"valid_perplexity": value, "best": best} for value, best in ((9.0, True), (7.0, True), (8.0, False))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert benchmark("criteria").perplexity(SimpleNamespace(folder=tmp_path)) == 7.0


# ---------------------------------------------------------------- what nothing held


def stepped(training, penalty=0.0):
    """A parameter after three steps on the loss Σ a w³ + penalty/2 ‖w‖², and its gradients without the penalty."""
    model = torch.nn.ParameterList([torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)])
    optimizer, gradients = _optimizer(model, training), []
    for _ in range(3):
        optimizer.zero_grad()
        w = model[0]
        loss = (torch.tensor([1.0, 2.0, -0.5]) * w**3).sum()
        gradients.append(torch.autograd.grad(loss, w, retain_graph=True)[0])
        (loss + penalty / 2 * (w**2).sum()).backward()
        optimizer.step()
    return model[0].detach(), gradients


def test_adam_without_the_first_mean_is_rmsprop_with_bias_correction():
    found, gradients = stepped(TrainingConfig(betas=(0.0, 0.999), learning_rate=0.01))
    w, square = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for t, g in enumerate(gradients, 1):
        square = 0.999 * square + 0.001 * g**2
        w = w - 0.01 * g / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(found, w, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_weight_decay_is_an_l2_penalty_in_the_loss(optimizer):
    training = TrainingConfig(optimizer=optimizer, learning_rate=0.01, weight_decay=0.3)
    decayed, _ = stepped(training)
    penalised, _ = stepped(replace(training, weight_decay=0.0), penalty=0.3)
    torch.testing.assert_close(decayed, penalised, atol=1e-12, rtol=1e-12)
    assert not torch.equal(decayed, stepped(replace(training, weight_decay=0.0))[0])


IDS, LENGTHS = np.ones((4, 1), np.int64), np.array([4])


@pytest.mark.parametrize(
    "batch",
    [
        Window(IDS, IDS, 4, LENGTHS),
        SentenceBatch(IDS, LENGTHS),
        PairBatch(IDS, IDS, LENGTHS, LENGTHS, np.array([2])),
        TranslationBatch(IDS, LENGTHS, IDS, IDS, LENGTHS),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_of_fewer_sentences_than_processes_is_shared(batch):
    parts = [batch.part(index, 3) for index in range(3)]
    assert sorted(part.count for part in parts) == [0, 0, batch.count]
    assert [part.steps for part in parts] == [batch.steps] * 3
