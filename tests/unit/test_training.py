"""The training loop on tiny corpora, exact evaluation, and a run's configuration."""

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from gatedrnn.cells import CELLS
from gatedrnn.core.config import convert, from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, ConfigError, DataError
from gatedrnn.data import EOS, UNK, Corpus, DataConfig, Vocabulary, find_splits
from gatedrnn.gates import Gates
from gatedrnn.layers import Recurrent
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.perplexity import evaluate
from gatedrnn.tasks.task import Score
from gatedrnn.training import checkpoint
from gatedrnn.training.config import RunConfig, TrainingConfig, read_run_config
from gatedrnn.training.loop import Loop, train
from gatedrnn.training.projected import projected
from gatedrnn.training.run import accept_run, load_run, read_metrics
from gatedrnn.training.state import Progress

MODEL = LanguageModelConfig(
    cell="lstm", embedding_size=8, hidden_sizes=(8,), input_dropout=0, hidden_dropout=0, output_dropout=0
)
TRAINING = TrainingConfig(epochs=3, batch_size=4, sequence_length=10, learning_rate=0.05, device="cpu")


class Recorder:
    """A display that remembers what it was told, and can interrupt."""

    def __init__(self, interrupt_at=None):
        self.epochs, self.steps, self.records, self.interrupt_at = [], [], [], interrupt_at

    def start_epoch(self, epoch, steps):
        self.epochs.append((epoch, steps))

    def step(self, done, loss_nats, tokens_per_second):
        self.steps.append((done, loss_nats))
        assert tokens_per_second > 0
        if self.interrupt_at == len(self.steps):
            raise KeyboardInterrupt

    def end_epoch(self, record):
        self.records.append(record)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path, "the cat sees a dog\na dog sees the cat\n", "the dog sees a cat\n")


def make_corpus(folder, train_text, valid_text, repeat=25):
    (folder / "train.txt").write_text(train_text * repeat)
    (folder / "valid.txt").write_text(valid_text * 5)
    return Corpus(find_splits(folder), min_count=1)


def run(corpus, folder, display=None, model=None, **training):
    display = display or Recorder()
    config = RunConfig(DataConfig(), changed(**(model or {})), replace(TRAINING, **training))
    return train(config, LanguageModelling(corpus), folder, display), display


def changed(**fields):
    """`MODEL` with other fields; of ON-LSTM, chunks that divide its layers."""
    return replace(MODEL, **{"options": {"chunk_size": 2} if fields.get("cell") == "onlstm" else {}} | fields)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def initial_weights(corpus, folder, **training):
    """What a run's seed starts from."""
    with pytest.raises(ZeroDivisionError):

        class Stop(Recorder):
            def start_epoch(self, epoch, steps):
                raise ZeroDivisionError

        run(corpus, folder, Stop(), **training)
    return weights(folder)


def test_loss_falls_and_a_line_an_epoch_is_kept(corpus, tmp_path):
    outcome, display = run(corpus, tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    assert records == display.records
    assert outcome.stopped == "all epochs done" and outcome.epochs == 3
    windows_an_epoch = math.ceil(math.ceil(corpus.sizes["train"] / 4) / 10)
    assert display.epochs == [(epoch, windows_an_epoch) for epoch in (1, 2, 3)]
    assert [done for done, _ in display.steps] == [*range(1, windows_an_epoch + 1)] * 3
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert [r["step"] for r in records] == [windows_an_epoch * k for k in (1, 2, 3)]
    losses = [r["train_loss_nats"] for r in records]
    assert losses[0] > losses[1] > losses[2]
    assert records[-1]["valid_loss_nats"] < math.log(len(corpus.vocabulary)) - 0.2
    for r in records:
        assert r["train_perplexity"] == pytest.approx(math.exp(r["train_loss_nats"]))
        assert r["valid_perplexity"] == pytest.approx(math.exp(r["valid_loss_nats"]))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records


def test_a_run_is_complete_on_disk_and_loads(corpus, tmp_path):
    run(corpus, tmp_path / "run", epochs=1)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    own = {
        "config.yaml",
        "model.safetensors",
        "vocabulary.json",
        "checksums.json",
        "metrics.jsonl",
        "tokens",
        "checkpoint",
    }
    assert names == own
    loaded = load_run(tmp_path / "run")
    assert loaded.vocabulary.words == corpus.vocabulary.words
    assert loaded.config == RunConfig(
        DataConfig(), replace(MODEL, vocabulary_size=len(corpus.vocabulary)), replace(TRAINING, epochs=1)
    )
    assert not loaded.model.training


def overfit(tmp_path, **training):
    """Training and validation text disagree, so that the validation loss soon rises."""
    corpus = make_corpus(tmp_path, "a b c d\n", "d a c b\n")
    outcome, display = run(corpus, tmp_path / "run", epochs=8, **training)
    assert not all(r["best"] for r in display.records)
    return corpus, outcome, display.records


def test_the_best_weights_on_validation_are_kept(tmp_path):
    corpus, outcome, records = overfit(tmp_path)
    losses = [r["valid_loss_nats"] for r in records]
    best = min(losses)
    assert losses[-1] > best
    assert [r["best"] for r in records] == [loss < min([math.inf, *losses[:k]]) for k, loss in enumerate(losses)]
    loaded = load_run(tmp_path / "run")
    found = evaluate(loaded.model, corpus["valid"], loaded.vocabulary, batch_size=TRAINING.evaluation_batch_size)
    assert found.loss_nats == pytest.approx(best, abs=1e-6)
    assert outcome.best == pytest.approx(math.exp(best))


@pytest.mark.parametrize(("factor", "threshold"), [(0.5, 0.0), (0.1, 0.01), (1.0, 0.01), (0.5, 0.9)])
def test_an_epoch_that_does_not_improve_enough_lowers_the_rate(tmp_path, factor, threshold):
    records = overfit(tmp_path, plateau_factor=factor, plateau_threshold=threshold)[2]
    best, rate, drops = math.inf, TRAINING.learning_rate, 0
    for record in records:
        assert record["learning_rate"] == pytest.approx(rate)
        if record["valid_loss_nats"] > best * (1 - threshold):
            rate, drops = rate * factor, drops + 1
        best = min(best, record["valid_loss_nats"])
    assert 0 < drops < len(records)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 1.0), ("adam", 0.05), ("adamw", 0.05)])
@pytest.mark.parametrize("clip", [0, 0.25])
def test_every_optimizer_learns_with_and_without_clipping(corpus, tmp_path, optimizer, rate, clip):
    settings = {"optimizer": optimizer, "learning_rate": rate, "gradient_clip": clip, "weight_decay": 1e-4}
    records = run(corpus, tmp_path / "run", **settings)[1].records
    assert records[-1]["valid_loss_nats"] < records[0]["valid_loss_nats"] < math.log(len(corpus.vocabulary))


def test_clipping_bounds_the_first_step(corpus, tmp_path):
    def moved(clip):
        settings = {"optimizer": "sgd", "learning_rate": 1.0, "gradient_clip": clip}
        folder = tmp_path / f"clip{clip}"
        before = initial_weights(corpus, folder / "before", **settings)
        run(corpus, folder / "after", Recorder(interrupt_at=1), **settings)
        assert weights(folder / "after") != before
        pairs = [load_run(folder / name).model.state_dict() for name in ("before", "after")]
        names = [name for name in pairs[0] if name != "decoder.weight"]
        return math.sqrt(sum(((pairs[0][n] - pairs[1][n]) ** 2).sum().item() for n in names))

    assert moved(0.01) == pytest.approx(0.01, rel=1e-3)
    assert moved(0) > 0.05


def test_temperature_and_noise_are_annealed_to_their_last_values(corpus, tmp_path, monkeypatch):
    seen = []
    forward = Recurrent.forward

    def watched(self, *arguments, **options):
        if self.training:
            seen.append(self.gates)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(Recurrent, "forward", watched)
    model = {"cell": "g2lstm"}
    run(corpus, tmp_path / "a", model=model, final_temperature=0.1, final_noise_probability=1.0)
    temperatures, chances = [g.temperature for g in seen], [g.noise_probability for g in seen]
    assert (temperatures[0], chances[0]) == (0.9, 0.2)
    assert (temperatures[-1], chances[-1]) == pytest.approx((0.1, 1.0))
    np.testing.assert_allclose(np.diff(np.log(temperatures)), np.log(0.1 / 0.9) / (len(seen) - 1), atol=1e-12)
    np.testing.assert_allclose(np.diff(chances), 0.8 / (len(seen) - 1), atol=1e-12)
    seen.clear()
    run(corpus, tmp_path / "b", model=model, final_temperature=0.1)
    assert {g.noise_probability for g in seen} == {0.2}
    assert load_run(tmp_path / "b").model.layers[0].gates.temperature == 0.9
    assert weights(tmp_path / "a") != weights(tmp_path / "b")


def test_the_budget_of_minutes_stops_within_an_epoch(corpus, tmp_path):
    outcome, display = run(corpus, tmp_path / "run", epochs=1000, minutes=1e-6)
    assert outcome.stopped == "the budget of 1e-06 minutes is spent"
    assert len(display.steps) == len(display.records) == 1
    assert load_run(tmp_path / "run").model is not None


@pytest.mark.parametrize("at", [1, 3])
def test_interrupt_before_the_first_validation_keeps_the_current_weights(corpus, tmp_path, at):
    before = initial_weights(corpus, tmp_path / "before")
    outcome, display = run(corpus, tmp_path / "run", Recorder(interrupt_at=at))
    assert (outcome.stopped, outcome.best, outcome.epochs) == ("interrupted", None, 0)
    assert len(display.steps) == at
    assert weights(tmp_path / "run") != before
    assert evaluate(load_run(tmp_path / "run").model, corpus["valid"], corpus.vocabulary).tokens > 0


def test_interrupt_after_a_validation_keeps_the_best_weights(corpus, tmp_path):
    outcome, display = run(corpus, tmp_path / "run", Recorder(interrupt_at=10))
    assert outcome.stopped == "interrupted" and outcome.epochs == len(display.records) == 1
    loaded = load_run(tmp_path / "run")
    found = evaluate(loaded.model, corpus["valid"], loaded.vocabulary, batch_size=TRAINING.evaluation_batch_size)
    assert found.loss_nats == pytest.approx(display.records[0]["valid_loss_nats"], abs=1e-6)


def test_an_existing_run_is_never_overwritten(corpus, tmp_path):
    run(corpus, tmp_path / "run", epochs=1)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    with pytest.raises(
        DataError,
        match=r"run: must not hold a run yet; got a run's config\.yaml\. Continue it with --resume, choose another --out",
    ):
        run(corpus, tmp_path / "run", seed=2)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()} == before


@pytest.mark.parametrize("cell", ["onlstm", "g2lstm"])
def test_the_same_seed_gives_the_same_bits(corpus, tmp_path, cell):
    drops = {"cell": cell, "input_dropout": 0.2, "output_dropout": 0.2, "embedding_dropout": 0.1, "weight_dropout": 0.2}
    settings = {"model": drops | {"gates": Gates(temperature=0.9, noise_probability=0.5)}, "epochs": 1}
    run(corpus, tmp_path / "one", **settings)
    torch.rand(5)
    run(corpus, tmp_path / "two", **settings)
    run(corpus, tmp_path / "three", **settings, seed=2)
    assert weights(tmp_path / "one") == weights(tmp_path / "two") != weights(tmp_path / "three")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("sequence_length", [10, 10_000], ids=["mid-epoch", "last step of an epoch"])
def test_a_loss_that_explodes_stops_with_our_error_and_the_run_loads(corpus, tmp_path, optimizer, sequence_length):
    display = Recorder()
    rule = (
        r"training: the (loss must be finite and below 100 nats|gradient's norm must be finite) \(epoch \d, step \d+\); "
        r"got .*learning_rate"
    )
    settings = {"optimizer": optimizer, "learning_rate": 1e39, "sequence_length": sequence_length}
    with pytest.raises(ArgumentError, match=rule):
        run(corpus, tmp_path / "run", display, **settings)
    assert not [r for r in display.records if r["best"] and not math.isfinite(r["valid_loss_nats"])]
    found = evaluate(load_run(tmp_path / "run").model, corpus["valid"], corpus.vocabulary)
    assert found.perplexity < 2 * len(corpus.vocabulary)


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_trains(corpus, tmp_path, cell):
    outcome, display = run(corpus, tmp_path / "run", model={"cell": cell, "hidden_sizes": (12, 8)}, minutes=1e-6)
    assert len(display.steps) == 1 and outcome.epochs == 0
    loaded = load_run(tmp_path / "run")
    found = evaluate(loaded.model, corpus["valid"], loaded.vocabulary, batch_size=TRAINING.evaluation_batch_size)
    assert found.loss_nats == pytest.approx(display.records[0]["valid_loss_nats"], abs=1e-6)


def test_a_model_that_cannot_be_built_leaves_no_folder(corpus, tmp_path):
    with pytest.raises(ArgumentError, match="chunk_size: must divide"):
        run(corpus, tmp_path / "run", model={"cell": "onlstm", "options": {"chunk_size": 5}})
    with pytest.raises(
        ArgumentError, match=r"training\.device: must be a device of this machine; got 'toaster' \(.*[^.!]\)\. Write "
    ):
        run(corpus, tmp_path / "run", device="toaster")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- evaluation


def make_stream(n=57, cell="onlstm"):
    torch.manual_seed(3)
    words = Vocabulary([UNK, EOS, *"abcdefgh"])
    model = LanguageModel(changed(cell=cell, vocabulary_size=len(words), output_dropout=0.5))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return model, np.random.default_rng(0).integers(0, 10, n).astype(np.int32), words


@torch.no_grad()
def nats_of_stretch(model, tokens, before):
    """Summed loss of one stretch in one pass."""
    inputs = torch.tensor([before, *tokens[:-1]])[:, None]
    return F.cross_entropy(model(inputs).logits[:, 0], torch.tensor(tokens), reduction="sum").item()


@pytest.mark.parametrize("sequence_length", [1, 7, 56, 57, 500])
def test_batch_size_one_is_a_single_pass_over_the_stream(sequence_length):
    model, tokens, words = make_stream()
    model.train()
    found = evaluate(model, tokens, words, sequence_length=sequence_length)
    assert model.training, "it is put back into its mode"
    exact = nats_of_stretch(model.eval(), tokens.tolist(), 1) / 57
    assert found.loss_nats == pytest.approx(exact, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(exact), rel=1e-5)
    assert found.tokens == 57


@pytest.mark.parametrize("cell", ["onlstm", "gru", "g2lstm"])
@pytest.mark.parametrize("batch_size", [2, 10, 57, 400])
def test_stretches_side_by_side_start_afresh_and_padding_counts_nothing(cell, batch_size):
    model, tokens, words = make_stream(cell=cell)
    stream, stretch = tokens.tolist(), math.ceil(57 / min(batch_size, 57))
    starts = range(0, 57, stretch)
    model.eval()
    total = sum(nats_of_stretch(model, stream[i : i + stretch], stream[i - 1] if i else 1) for i in starts)
    found = evaluate(model, tokens, words, batch_size=batch_size, sequence_length=4)
    assert not model.training
    assert found.loss_nats == pytest.approx(total / 57, abs=1e-5)
    assert found.tokens == 57


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, r"modle: unknown key\. Did you mean 'model'\?"),
        ({"model": {"hiden_sizes": [8]}}, r"model\.hiden_sizes: unknown key\. Did you mean 'hidden_sizes'\?"),
        ({"training": {"learning_rat": 1}}, r"training\.learning_rat: unknown key\. Did you mean 'learning_rate'\?"),
        ({"data": {"min_counts": 1}}, r"data\.min_counts: unknown key\. Did you mean 'min_count'\?"),
        (
            {"model": {"gates": {"temprature": 1}}},
            r"model\.gates\.temprature: unknown key\. Did you mean 'temperature'\?",
        ),
        ({"model": [1]}, r"model: must be a mapping of keys to values; got \[1\]"),
        ({"model": {"hidden_sizes": 300}}, r"model\.hidden_sizes: must be a list; got 300"),
        ({"model": {"hidden_sizes": ["x"]}}, r"model\.hidden_sizes: must be an integer; got 'x'"),
        ({"model": {"hidden_sizes": []}}, r"model\.hidden_sizes: must have at least one layer"),
        ({"model": {"tied": "yes"}}, r"model\.tied: must be true or false; got 'yes'"),
        ({"model": {"cell": "onlsmt"}}, r"model\.cell: must be a registered cell; got 'onlsmt'. Did you mean 'onlstm'"),
        ({"model": {"embedding_size": 8.5}}, r"model\.embedding_size: must be an integer; got 8\.5"),
        ({"model": {"embedding_size": 7}}, r"model\.tied: .*got hidden_sizes=\[300, 300\], embedding_size=7"),
        ({"model": {"input_dropout": 1.5}}, r"model\.input_dropout: must be a probability .*got 1\.5"),
        ({"training": {"epochs": True}}, r"training\.epochs: must be an integer; got True"),
        ({"training": {"epochs": 0}}, r"training\.epochs: must be a positive integer; got 0"),
        ({"training": {"learning_rate": "fast"}}, r"training\.learning_rate: must be a number; got 'fast'"),
        ({"training": {"learning_rate": -1}}, r"training\.learning_rate: must be a finite number above 0; got -1"),
        ({"training": {"minutes": 0}}, r"training\.minutes: must be a finite number above 0; got 0"),
        (
            {"training": {"gradient_clip": -1}},
            r"training\.gradient_clip: must be a finite number of at least 0; got -1",
        ),
        ({"training": {"plateau_threshold": -1}}, r"training\.plateau_threshold: must be .* at least 0; got -1"),
        ({"training": {"plateau_factor": 0}}, r"training\.plateau_factor: must lie in \(0, 1\]; got 0"),
        (
            {"training": {"final_temperature": 0}},
            r"training\.final_temperature: must be a finite number above 0; got 0",
        ),
        (
            {"training": {"final_noise_probability": 2}},
            r"training\.final_noise_probability: must be a probability .*got 2",
        ),
        ({"training": {"optimizer": "lion"}}, r"training\.optimizer: must be one of adam, adamw, sgd; got 'lion'"),
        ({"training": {"seed": -1}}, r"training\.seed: must be an integer of at least 0; got -1"),
        ({"data": {"level": "byte"}}, r"data\.level: must be one of word, char, subword; got 'byte'"),
        ({"data": {"min_count": 0}}, r"data\.min_count: must be a positive integer; got 0"),
        ([], r"must be a mapping of keys to values; got \[\]"),
    ],
)
def test_a_bad_configuration_is_refused_by_key_rule_and_value(values, message):
    with pytest.raises(ArgumentError, match=message):
        from_dict(RunConfig, values, "")


def test_a_configuration_survives_yaml(tmp_path):
    config = RunConfig(
        DataConfig(folder="x", min_count=3),
        replace(MODEL, vocabulary_size=9, gates=Gates(temperature=0.5, names=("input_gate",))),
        replace(TRAINING, minutes=1.5),
    )
    assert from_dict(RunConfig, to_dict(config), "") == config
    (tmp_path / "a.yaml").write_text("training: {learning_rate: 1e-3, minutes: 2}\nmodel: {gates: null}\n")
    read = read_run_config(tmp_path / "a.yaml")
    assert (read.training.learning_rate, read.training.minutes, read.model.gates) == (0.001, 2.0, None)
    (tmp_path / "empty.yaml").write_text("")
    assert read_run_config(tmp_path / "empty.yaml") == RunConfig()


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"a: [1\nb: 2\n", r"a\.yaml:2: must be YAML"), (b"\xff\xfe", r"a\.yaml: must be UTF-8 text"), (None, "readable")],
)
def test_an_unreadable_configuration_is_refused(tmp_path, raw, message):
    if raw is not None:
        (tmp_path / "a.yaml").write_bytes(raw)
    with pytest.raises(ConfigError, match=message):
        read_run_config(tmp_path / "a.yaml")


def test_a_run_with_another_vocabulary_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", minutes=1e-6)
    Vocabulary([UNK, EOS, "a"]).save(tmp_path / "run" / "vocabulary.json")
    accept_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"vocabulary\.json: must be of the model's size; got 3 words and .*=7"):
        load_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="must be a run's folder; got no such folder"):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize(("cell", "temperature", "chance"), [("g2lstm", 0.9, 0.2), ("lstm", 1.0, 0.0)])
def test_what_a_configuration_leaves_open_of_the_gates_is_the_cells(cell, temperature, chance):
    def gates(**given):
        return from_dict(RunConfig, {"model": {"cell": cell, "gates": given}}, "").model.gates

    assert gates(noise_probability=1) == replace(gates(), noise_probability=1.0)
    assert gates(temperature=0.5).noise_probability == chance
    assert gates().temperature == temperature and gates().names == CELLS[cell].gates.names
    with pytest.raises(ArgumentError, match=r"model\.gates\.noise: unknown key.*noise_probability"):
        gates(noise=1)


def test_an_integer_that_no_float_holds_is_refused():
    assert convert(float, 10**300, "a.b") == 1e300
    with pytest.raises(ArgumentError, match=r"^a\.b: must fit a floating-point number; got an integer of 1329 bits\."):
        convert(float, 10**400, "a.b")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": ["translation"]}, r"^task: unknown name; got \['translation'\]\. Did you mean 'translation'\?"),
        ({"task": {"a": 1}}, r"^task: unknown name; got \{'a': 1\}\. Known: "),
        ({"data": {"folder": 2024}}, r"^data\.folder: must be text; got 2024\. Put it in quotes\.$"),
        ({"data": {"level": ["word"]}}, r"^data\.level: must be text; got \['word'\]\. Change the value\.$"),
        (
            {"task": "translation", "data": {"columns": "de"}},
            r"columns: must be a list; got 'de'\. Write \[name, name\]",
        ),
        ({"model": {"hidden_sizes": 8}}, r"^model\.hidden_sizes: must be a list; got 8\. Write \[300, 300\]\.$"),
        ({"training": {"betas": 1}}, r"^training\.betas: must be a list; got 1\. Write \[0\.9, 0\.99\]\.$"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_to_write(values, message):
    with pytest.raises(ArgumentError, match=message):
        from_dict(RunConfig, values, "")


STILL = {"optimizer": "sgd", "learning_rate": 1e-30, "gradient_clip": 0.0}


def test_the_training_loss_is_the_mean_over_tokens_and_every_epoch_starts_afresh(corpus, tmp_path):
    """Of weights that do not move, every epoch's is the perplexity of the training text; equal scores are no better ones."""
    records = run(corpus, tmp_path / "run", sequence_length=60, **STILL)[1].records
    loaded = load_run(tmp_path / "run")
    exact = evaluate(loaded.model, corpus["train"], loaded.vocabulary, batch_size=4)
    assert -(-exact.tokens // 4) % 60  # the last window is shorter
    assert [r["train_loss_nats"] for r in records] == pytest.approx([exact.loss_nats] * 3, abs=1e-6)
    assert [r["best"] for r in records] == [True, False, False]


def test_finetuning_begins_with_the_best_weights_a_new_optimizer_and_the_first_rate(tmp_path):
    class Cut(Recorder):
        def start_epoch(self, epoch, steps):
            super().start_epoch(epoch, steps)
            if epoch == 9:
                raise ZeroDivisionError

    corpus, display = make_corpus(tmp_path, "a b c d\n", "d a c b\n"), Cut()
    with pytest.raises(ZeroDivisionError):
        run(corpus, tmp_path / "run", display, epochs=8, finetune_epochs=1)
    assert not display.records[-1]["best"] and display.records[-1]["learning_rate"] < TRAINING.learning_rate
    tensors, values = checkpoint.load(tmp_path / "run")
    best = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(tensors[f"model.{name}"], value) for name, value in best.items())
    assert not any(name.startswith(("optimizer.", "rank.0.states.")) for name in tensors)
    means = [value for name, value in sorted(tensors.items()) if name.startswith("average.")]
    assert {value.numel() for value in means} == {value.numel() for value in best.values()}
    assert (values["stage"], values["base_rate"], values["averaged"]) == ("finetune", TRAINING.learning_rate, 0)


def test_projected_weights_are_what_is_trained_scored_and_saved_and_steps_add_up_behind_them(corpus, tmp_path):
    class Grid:
        name, memory = "grid", {}

        def __call__(self, weights):
            return {name: (value * 20).round() / 20 for name, value in weights.items() if value.dim() == 2}

    def on_grid(weights, prefix=""):
        return all(
            torch.equal(value, (value * 20).round() / 20)
            for name, value in weights.items()
            if name.startswith(prefix) and value.dim() == 2
        )

    def trained(folder, **training):
        config = RunConfig(DataConfig(), MODEL, replace(TRAINING, **training))
        train(config, LanguageModelling(corpus), folder, Recorder(), project=Grid())
        loaded = load_run(folder)
        assert on_grid(loaded.model.state_dict())
        tensors = {name: value for name, value in checkpoint.load(folder)[0].items() if name.startswith("model.")}
        assert not on_grid(tensors)
        return loaded, read_metrics(folder)

    loaded, records = trained(tmp_path / "still", epochs=1, sequence_length=60, **STILL)
    exact = evaluate(loaded.model, corpus["train"], loaded.vocabulary, batch_size=4)
    assert records[0]["train_loss_nats"] == pytest.approx(exact.loss_nats, abs=1e-6)
    loaded, records = trained(tmp_path / "run")
    exact = evaluate(loaded.model, corpus["valid"], loaded.vocabulary, batch_size=TRAINING.evaluation_batch_size)
    assert min(record["valid_loss_nats"] for record in records) == pytest.approx(exact.loss_nats, abs=1e-6)


class Scores:
    """Validation scores one after another, whatever the weights are."""

    def __init__(self, *losses):
        self.left = list(losses)

    def __call__(self, model, settings, split="valid"):
        loss = self.left.pop(0)
        return Score(loss, {"loss_nats": loss, "perplexity": loss})


def test_a_score_is_compared_with_the_best_before_it_not_with_the_last(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(LanguageModelling, "score", Scores(3.0, 2.0, 2.5, 2.2, 1.9, 1.0))
    records = run(corpus, tmp_path / "rate", epochs=6, plateau_factor=0.5, plateau_threshold=0.0)[1].records
    assert [r["learning_rate"] / TRAINING.learning_rate for r in records] == pytest.approx([1, 1, 1, 0.5, 0.25, 0.25])
    assert [r["best"] for r in records] == [True, True, False, False, True, True]
    monkeypatch.setattr(LanguageModelling, "score", Scores(3.0, 2.0, 2.5, 2.2, 1.9, 1.0))
    outcome, display = run(corpus, tmp_path / "patience", epochs=6, patience=2)
    assert outcome.stopped == "no better score in 2 epochs" and len(display.records) == 4


def test_finetuning_ends_where_the_score_is_no_longer_better(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(LanguageModelling, "score", Scores(9.0, 3.0, 2.9, 2.95, 2.8, 2.85, 2.84, 1.0))
    settings = {"optimizer": "sgd", "learning_rate": 1.0, "finetune_epochs": 9, "average_interval": 1}
    outcome, display = run(corpus, tmp_path / "run", epochs=1, **settings)
    assert outcome.stopped == "finetuned" and len(display.records) == 7  # 2.84 is above 2.8, of two epochs before


def test_every_layer_s_temperature_is_annealed(corpus, tmp_path, monkeypatch):
    seen, forward = {}, Recurrent.forward

    def watched(self, *arguments, **options):
        if self.training:
            seen.setdefault(self.hidden_size, []).append(self.gates.temperature)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(Recurrent, "forward", watched)
    run(corpus, tmp_path / "run", model={"cell": "g2lstm", "hidden_sizes": (6, 8)}, epochs=1, final_temperature=0.1)
    assert seen[6] == seen[8] and seen[8][-1] == pytest.approx(0.1)


def test_seconds_add_up_over_sessions(corpus, tmp_path):
    spent = []
    for epochs in (1, 2, 3):
        config = RunConfig(DataConfig(), MODEL, replace(TRAINING, epochs=epochs))
        train(config, LanguageModelling(corpus), tmp_path / "run", Recorder(), resume=True)
        spent.append(checkpoint.load(tmp_path / "run")[1]["seconds"])
        assert spent[-1] >= read_metrics(tmp_path / "run")[-1]["seconds"] > 0
    assert 0 < spent[0] < spent[1] < spent[2]


def test_a_log_that_is_ahead_of_the_checkpoint_is_cut_as_a_run_is_resumed(corpus, tmp_path):
    run(corpus, tmp_path / "run", epochs=1)
    log, config = tmp_path / "run" / "metrics.jsonl", RunConfig(DataConfig(), MODEL, replace(TRAINING, epochs=2))
    log.write_text((before := log.read_text()) * 2)
    train(config, LanguageModelling(corpus), tmp_path / "run", Recorder(interrupt_at=1), resume=True)
    assert log.read_text() == before


def test_weights_are_put_back_after_an_error_too():
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()

    def halved(weights):
        return {"weight": weights["weight"] / 2}

    with pytest.raises(ZeroDivisionError), projected(model, halved):
        assert torch.equal(model.weight, before / 2)
        raise ZeroDivisionError
    assert torch.equal(model.weight, before)


def test_the_budget_holds_another_validation_and_a_checkpoint_is_due_by_the_minute():
    config = RunConfig(DataConfig(), MODEL, replace(TRAINING, minutes=2.0, checkpoint_minutes=3.0))
    loop = SimpleNamespace(config=config, state=SimpleNamespace(progress=Progress(validation_seconds=30.0)))
    loop._seconds = lambda: 60.0
    assert Loop._spent(loop) == pytest.approx(0.75)
    for ago, due in ((170, False), (190, True)):
        loop.saved_at = time.perf_counter() - ago
        assert Loop._checkpoint_is_due(loop) == due
