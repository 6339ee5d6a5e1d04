"""Parts of training recipes: schedules, shuffles, averages, optimizers, fine-tuning, resets, skip connections, temperature."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from letters import write_letters
from small_trainings import corpus_in, run

from gatedrnn import ArgumentError
from gatedrnn.cli.main import main
from gatedrnn.data import EOS, Corpus, Vocabulary, find_splits
from gatedrnn.data.batching import PAD_TARGET, StreamBatches, window_lengths
from gatedrnn.gates import Gates
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.surprisal import window_losses
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.cache import Cache
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.language_modelling import _reset
from gatedrnn.tasks.perplexity import TEMPERATURES, best_temperature, evaluate
from gatedrnn.training.averaging import Average
from gatedrnn.training.loop import _optimizer
from gatedrnn.training.run import read_metrics
from gatedrnn.training.schedule import betas, gates_at, one_cycle, plateau, rate, starts_averaging

CYCLE = TrainingConfig(schedule="one_cycle", betas=(0.8, 0.99), peak_beta=0.7)


class TestOneCycle:
    def test_it_rises_stays_falls_and_ends_near_zero(self):
        shares = [one_cycle(k / 90) for k in (0, 7.5, 20, 45, 63.75, 82.5, 90)]
        assert shares == pytest.approx([0.1, 1.0, 1.0, 1.0, 0.55, 0.1, 0.001])
        rates = [rate(CYCLE, 0.005, step, 90, 35) for step in range(91)]
        assert max(rates) == pytest.approx(0.005) and rates[-1] == pytest.approx(5e-6)
        assert rate(CYCLE, 0.005, 3, 90, 35, spent=1.3) == pytest.approx(5e-6)  # the minutes have ended

    def test_beta_moves_against_the_rate(self):
        found = [betas(CYCLE, step, 900)[0] for step in (0, 75, 450, 825, 899)]
        assert found == pytest.approx([0.8, 0.7, 0.7, 0.8, 0.8])
        assert betas(replace(CYCLE, peak_beta=None), 450, 900) == (0.8, 0.99)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"peak_beta": 1.0, "schedule": "one_cycle"}, "training.peak_beta: must lie in"),
            ({"peak_beta": 0.7}, "needs schedule: one_cycle"),
            (
                {"peak_beta": 0.7, "schedule": "one_cycle", "optimizer": "sgd"},
                "needs schedule: one_cycle and optimizer",
            ),
            ({"average_decay": 1.0}, r"training.average_decay: must lie in \[0, 1\)"),
            ({"reset_probability": 1.5}, "training.reset_probability"),
            ({"partial_shuffle": True, "unit": "sentence"}, "needs unit: stream"),
            ({"reset_probability": 0.1, "unit": "sentence"}, "needs unit: stream"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, values, message):
        with pytest.raises(ArgumentError, match=message):
            TrainingConfig(**values)


@pytest.mark.parametrize(("schedule", "last"), [("cosine", 0.0), ("one_cycle", 1e-6)])
def test_a_schedule_ends_with_the_last_epoch_where_epochs_become_longer(schedule, last, tmp_path):
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text("".join("a b " * n + "\n" for n in range(1, 9)) * 5)
    config = f"""
task: grammar
data: {{longest: 16, first_longest: 3}}
model: {{nonterminals: 2, preterminals: 2, state_size: 4}}
training: {{epochs: 8, batch_size: 1, learning_rate: 0.001, schedule: {schedule}, device: cpu}}
"""
    (tmp_path / "c.yaml").write_text(config)
    given = ["--config", str(tmp_path / "c.yaml"), "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(["train", *given]) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.ptp(np.diff([record["step"] for record in records])) > 0
    assert records[-1]["learning_rate"] == pytest.approx(last, abs=1e-5)


class TestPartialShuffle:
    @pytest.mark.parametrize(
        ("n", "size", "length"), [(1, 1, 5), (7, 3, 2), (50, 4, 6), (51, 4, 7), (9, 8, 3), (64, 7, 64)]
    )
    def test_every_token_is_predicted_once_after_its_predecessor(self, n, size, length):
        tokens = np.arange(n)
        for epoch in (1, 2, 3):
            batches = StreamBatches(tokens, size, window_lengths(n, size, length), 1000, (5, epoch))
            seen = []
            for k in range(len(batches)):
                window = batches[k]
                there = window.targets_TB != PAD_TARGET
                before = np.where(window.targets_TB == 0, 1000, window.targets_TB - 1)
                assert (window.inputs_TB == before)[there].all()
                seen += window.targets_TB[there].tolist()
            assert sorted(seen) == tokens.tolist()

    def test_each_stretch_is_its_own_rotation_another_in_each_epoch(self):
        def rows(epoch):
            batches = StreamBatches(np.arange(120), 4, [30], 1000, (1, epoch))
            return batches[0].targets_TB.T

        first, again, second = rows(1), rows(1), rows(2)
        assert (first == again).all() and (first != second).any()
        for b, row in enumerate(first):
            assert (np.roll(row, int(np.argmin(row)) * -1) == np.arange(30 * b, 30 * b + 30)).all()
        assert len({int(np.argmin(row)) for row in first}) > 1

    def test_without_it_the_text_keeps_its_order(self):
        assert StreamBatches(np.arange(8), 2, [4], 9)[0].targets_TB.T.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


class TestAverages:
    def test_exponential_after_a_plain_beginning(self):
        model = torch.nn.Linear(1, 1, bias=False)
        average, expected = Average(model, 0.75), 0.0
        for step in range(1, 9):
            with torch.no_grad():
                model.weight.fill_(float(step * step))
            average.update()
            expected = (
                sum(k * k for k in range(1, step + 1)) / step if step <= 4 else 0.75 * expected + 0.25 * step * step
            )
            assert float(average.means[0]) == pytest.approx(expected)

    def test_it_begins_with_the_first_step_unless_an_epoch_is_named(self):
        decaying = TrainingConfig(average_decay=0.99)
        assert starts_averaging(decaying, [])
        named = replace(decaying, average_epoch=2)
        assert [starts_averaging(named, [1.0] * n) for n in (0, 1, 2)] == [False, False, True]

    def test_it_begins_where_the_loss_has_not_fallen_for_an_interval(self):
        waiting = TrainingConfig(average_interval=2)
        losses = [4.0, 3.0, 2.0, 5.0, 4.5, 4.2]
        assert [starts_averaging(waiting, losses[:n]) for n in range(7)] == [False] * 4 + [True] * 3


def test_the_rate_falls_where_the_loss_does_not_fall_enough():
    training = TrainingConfig(plateau_factor=0.5, plateau_threshold=0.1)
    assert [plateau(training, 8.0, loss, 2.0) for loss in (1.7, 1.79, 1.81, 2.0, 3.0)] == [8, 8, 4, 4, 4]
    assert plateau(training, 8.0, 9.0, None) == plateau(replace(training, schedule="cosine"), 8.0, 9.0, 2.0) == 8


def test_states_of_some_stretches_are_reset():
    torch.manual_seed(1)
    states = [(torch.ones(1, 1000, 3), torch.full((1, 1000, 3), 2.0)), (torch.ones(1, 1000, 2),)]
    found = _reset(states, 0.25)
    kept = found[0][0][0, :, 0] > 0
    assert 0.7 < kept.float().mean() < 0.8
    for layer, before in zip(found, states, strict=True):
        for state, old in zip(layer, before, strict=True):
            assert torch.equal(state[0, kept], old[0, kept]) and not state[0, ~kept].any()
    assert _reset(states, 0.0) is states and _reset(None, 0.5) is None


SMALL = LanguageModelConfig(vocabulary_size=11, cell="lstm", embedding_size=6, hidden_sizes=(6, 6), output_dropout=0.0)


class TestModel:
    def test_skip_connections_add_up_every_layer(self):
        torch.manual_seed(2)
        model = LanguageModel(replace(SMALL, skip_connections=True)).eval()
        tokens = torch.randint(0, 11, (5, 3))
        hidden, outputs = model.embedding(tokens), []
        for layer in model.layers:
            hidden, _ = layer(hidden)
            outputs.append(hidden)
        torch.testing.assert_close(model(tokens).logits, model.decoder(outputs[0] + outputs[1]))
        with pytest.raises(ArgumentError, match="needs hidden layers of one size"):
            replace(SMALL, hidden_sizes=(7, 6), skip_connections=True)

    @pytest.mark.parametrize("cell", ["lstm", "onlstm", "coupled"])
    def test_forget_biases(self, cell):
        model = LanguageModel(
            replace(SMALL, cell=cell, options={"chunk_size": 2} if cell == "onlstm" else {}, forget_bias=1.5)
        )
        for layer in model.layers:
            names = [gate.name for gate in layer.spec.gates]
            biases = (layer.bias_ih_l0 + layer.bias_hh_l0).split([gate.rows for gate in layer.spec.gates])
            for name, bias in zip(names, biases, strict=True):
                assert bool((bias == 1.5).all()) == (name == "forget_gate"), name
        with pytest.raises(ArgumentError, match="needs a cell with a forget gate"):
            replace(SMALL, cell="gru", options={}, forget_bias=1.0)
        with pytest.raises(ArgumentError, match="not normalised after the bias is added; got cell=layernorm"):
            replace(SMALL, cell="layernorm", options={}, forget_bias=1.0)

    def test_master_biases(self):
        options = {"cell": "onlstm", "options": {"chunk_size": 2}, "embedding_size": 12, "hidden_sizes": (12, 12)}
        models = {}
        for bias in (None, 4.0):
            torch.manual_seed(0)
            models[bias] = LanguageModel(replace(SMALL, **options, master_bias=bias))
        tokens = torch.randint(0, 11, (5, 3))
        for plain, layer in zip(models[None].layers, models[4.0].layers, strict=True):
            added = (layer.bias_ih_l0 - plain.bias_ih_l0).split([gate.rows for gate in layer.spec.gates])
            *others, master_input, master_forget = added
            assert not any(each.any() for each in others)
            torch.testing.assert_close(master_input, torch.linspace(0, 4, 6))
            torch.testing.assert_close(master_forget, -torch.linspace(0, 4, 6))
        (plain, *_), (kept, *_) = (models[bias].eval()(tokens, return_gates=True).gates for bias in (None, 4.0))
        for name in ("master_input", "master_forget"):
            assert kept[name].mean() > plain[name].mean() + 0.2
        with pytest.raises(
            ArgumentError, match=r"model.master_bias: needs a cell with a master forget gate; got cell=lstm"
        ):
            replace(SMALL, cell="lstm", options={}, master_bias=1.0)

    @pytest.mark.parametrize("key", ["forget_bias", "master_bias"])
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308])
    def test_a_bias_is_finite(self, key, value):
        with pytest.raises(
            ArgumentError, match=re.escape(f"model.{key}: must be a finite number of float32; got {value}")
        ):
            replace(SMALL, cell="onlstm", **{key: value})


class TestTemperature:
    def test_logits_are_divided_and_the_best_is_found(self):
        torch.manual_seed(3)
        vocabulary = Vocabulary(["<unk>", EOS, *"abcdefghi"])
        model = LanguageModel(replace(SMALL, vocabulary_size=len(vocabulary))).eval()
        with torch.no_grad():
            model.decoder.weight.mul_(40)  # too sure of itself
        tokens = np.random.default_rng(0).integers(0, len(vocabulary), 90)
        inputs = torch.from_numpy(np.r_[vocabulary.ids[EOS], tokens[:-1]])[:, None]
        for temperature in (0.8, 1.0, 1.25):
            losses = window_losses(model(inputs).logits / temperature, torch.from_numpy(tokens)[:, None])
            found = evaluate(model, tokens, vocabulary, temperature=temperature)
            assert found.loss_nats == pytest.approx(float(losses.mean().detach()), abs=1e-6)
        best = best_temperature(model, tokens, vocabulary, batch_size=1)
        scores = {round(t, 3): evaluate(model, tokens, vocabulary, temperature=t).loss_nats for t in TEMPERATURES}
        assert best == min(scores, key=scores.__getitem__) and best > 1
        with pytest.raises(
            ArgumentError, match=r"cannot be combined with a temperature; got temperature=0\.9\. Leave out"
        ):
            evaluate(model, tokens, vocabulary, temperature=0.9, reset=True)

    def test_the_command(self, tmp_path, capsys):
        lines = ["the old pilot sleeps", "a nurse sees the pilot", "the nurse sleeps"] * 30
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.txt").write_text("\n".join(lines))
        run = str(tmp_path / "run")
        options = ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--model.options.chunk_size", "2"]
        options += ["--training.epochs", "1", "--training.device", "cpu", "--training.average_decay", "0.9"]
        options += ["--training.schedule", "one_cycle", "--training.peak_beta", "0.7"]
        assert main(["train", "--data", str(tmp_path), "--out", run, *options]) == 0
        capsys.readouterr()
        assert main(["evaluate", run, "--temperature", "auto"]) == 0
        assert "(best on valid)" in capsys.readouterr().out
        retrained = ["--method", "svd", "--rank", "2", "--retrain", "1", "--out", str(tmp_path / "small")]
        assert main(["compress", run, *retrained]) == 0  # trains on with a schedule of its own
        assert main(["evaluate", run, "--temperature", "cold"]) == 1
        assert "--temperature: must be a number of at least 0.001, or auto; got 'cold'" in capsys.readouterr().err
        assert main(["evaluate", run, "--temperature", "1e-46"]) == 1 and "at least 0.001" in capsys.readouterr().err
        assert main(["evaluate", run, "--temperature", "auto", "--reset"]) == 1
        assert "--temperature: cannot be combined with --reset; got auto" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cache", "best", "said"),
    [(None, 0.9, "best on valid"), (None, 1.0, "best on valid"), (Cache(), 0.9, "best on valid, without cache and")],
)
def test_a_temperature_says_how_it_was_chosen(tmp_path, monkeypatch, cache, best, said):
    monkeypatch.setattr("gatedrnn.tasks.language_modelling.best_temperature", lambda *_: best)
    corpus = Corpus(find_splits(write_letters(tmp_path / "text", "abc", 20, 5)), min_count=1)
    task = LanguageModelling(corpus)
    model = task.network(task.complete(LanguageModelConfig(cell="lstm", embedding_size=4, hidden_sizes=(4,))), "auto")
    text = Corpus({"text": corpus.files["valid"]}, corpus.vocabulary)
    how = {"batch_size": 1, "reset": False, "temperature": "auto", "cache": cache, "dynamic": None}
    found = LanguageModelling.evaluate(model, corpus.vocabulary, text, how | {"valid": text})
    told = found.lines[-1]
    assert found.record["temperature"] == best
    assert f"temperature {best:g} ({said}" in told and told.count("without cache and dynamic evaluation)") == bool(
        cache
    )


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


@pytest.fixture
def corpus(tmp_path):
    return corpus_in(tmp_path / "text")


def test_finetuning_keeps_its_learning_rate(corpus, tmp_path):
    run(corpus, tmp_path / "run", epochs=3, finetune_epochs=3, plateau_threshold=0.9)
    rates = [record["learning_rate"] for record in read_metrics(tmp_path / "run")]
    assert rates == pytest.approx([0.05, 0.05, 0.025, 0.05, 0.05, 0.05])


def test_a_loss_that_explodes_is_told_with_its_bound(corpus, tmp_path):
    rule = r"^training: the loss must be finite and below 100 nats \(epoch 1, step \d+\); got \d"
    with pytest.raises(ArgumentError, match=rule):
        run(corpus, tmp_path / "run", optimizer="sgd", learning_rate=1e4, gradient_clip=0.0)


class Surer(torch.nn.Module):
    """A model that is right two times in three, and much surer of itself once it has a state."""

    def __init__(self, size):
        super().__init__()
        self.size, self.weight = size, torch.nn.Parameter(torch.zeros(1))

    def forward(self, tokens, states=None, targets=None):
        scale = 1.0 if states is None else 9.0
        logits = scale * torch.nn.functional.one_hot((tokens + 1) % self.size, self.size).double()
        return SimpleNamespace(logits=logits, states=[(self.weight[None],)], hidden=logits)


def test_the_best_temperature_is_found_with_the_state_carried():
    vocabulary = Vocabulary(["<unk>", EOS, *"abcdefghi"])
    draw, tokens = np.random.default_rng(0), [1]
    while len(tokens) <= 400:
        tokens.append((tokens[-1] + (1 if draw.random() < 2 / 3 else 4)) % 11)
    tokens, model = np.array(tokens[1:]), Surer(11)
    scores = {
        round(t, 3): evaluate(model, tokens, vocabulary, temperature=t + 1e-9, sequence_length=35).loss_nats
        for t in TEMPERATURES
    }
    assert best_temperature(model, tokens, vocabulary, batch_size=1) == min(scores, key=scores.__getitem__) == 1.25


def test_the_budget_of_minutes_moves_every_schedule():
    cycle = TrainingConfig(schedule="one_cycle", betas=(0.8, 0.99), peak_beta=0.7)
    assert betas(cycle, 0, 900, spent=0.25)[0] == pytest.approx(0.7)
    assert betas(cycle, 300, 900, spent=1.1)[0] == pytest.approx(0.8)
    annealed = TrainingConfig(final_temperature=0.1, final_noise_probability=1.0)
    found = gates_at(annealed, Gates(temperature=0.9, noise_probability=0.2), 0, 900, spent=0.5)
    assert (found.temperature, found.noise_probability) == pytest.approx(((0.9 * 0.1) ** 0.5, 0.6))


def test_a_rate_in_warm_up_is_in_proportion_to_the_window_and_no_schedule_s():
    training = TrainingConfig(schedule="cosine", warmup_steps=4, random_lengths=True, sequence_length=10)
    assert rate(training, 1.0, 1, 24, 35) == pytest.approx(0.5 * 3.5)
    assert rate(training, 1.0, 1, 24, 10, spent=0.5) == pytest.approx(0.5)
