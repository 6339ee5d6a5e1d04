"""A student learns a teacher's trees: heights of trees, the tree loss, its gradient through the gates, a teacher's file."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import Corpus, find_splits
from gatedrnn.data.batching import SentenceBatches
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.parsing import parse_sentences
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.teacher import TEACHER_FILE, DistilConfig, Teacher
from gatedrnn.tasks.tree_loss import tree_loss
from gatedrnn.trees import agreement, balanced, distances_to_spans, left, random_spans, right, spans_to_heights

EOS = 1
MODEL = LanguageModelConfig(
    vocabulary_size=8,
    cell="onlstm",
    embedding_size=6,
    hidden_sizes=(8, 6),
    options={"chunk_size": 2},
    weight_dropout=0.3,
)


def by_loop(distances, heights, temperature):
    """The losses of the constituents of three words or more of one sentence, from its distances and heights, one at a time."""
    found, stack = [], [(1, len(heights))]
    while stack:
        i, j = stack.pop()
        if i >= j:
            continue
        k = max(range(i, j), key=lambda t: heights[t])
        odds = [math.exp(distances[t] / temperature) for t in range(i, j)]
        if j - i > 1:
            found.append(-math.log(odds[k - i] / sum(odds)))
        stack += [(i, k), (k + 1, j)]
    return found


@given(st.integers(1, 40), st.integers(0, 1000))
def test_heights_give_the_tree_again(n, seed):
    spans = random_spans(n, random.Random(seed))
    heights = spans_to_heights(spans, n)
    assert distances_to_spans(heights, "unbiased") == spans and heights[0] == 0 and all(h > 0 for h in heights[1:])


def test_heights_count_levels_and_splits_of_one_constituent_are_equal():
    assert spans_to_heights(right(4), 4) == [0, 3, 2, 1] and spans_to_heights(left(4), 4) == [0, 1, 2, 3]
    assert spans_to_heights(balanced(4), 4) == [0, 1, 2, 1] and spans_to_heights(set(), 1) == [0]
    assert spans_to_heights({(1, 3)}, 4) == [0, 2, 1, 2]


def batch(lengths, seed=0):
    """Distances and heights [T, B] of sentences of these many words, after `<eos>`; padded."""
    generator = random.Random(seed)
    heights = np.zeros((max(lengths) + 1, len(lengths)), np.int16)
    for b, n in enumerate(lengths):
        heights[1 : n + 1, b] = spans_to_heights(random_spans(n, generator), n)
    distances = torch.rand(heights.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return distances, torch.from_numpy(heights)


@pytest.mark.parametrize("lengths", [(5,), (2, 1, 1), (1, 9, 3, 30, 4), (3, 3)])
@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_the_loss_is_that_of_a_loop_over_constituents(lengths, temperature):
    distances, heights = batch(lengths)
    columns = zip(distances.t().tolist(), heights.t().tolist(), lengths, strict=True)
    each = [loss for far, high, n in columns for loss in by_loop(far[1 : n + 1], high[1 : n + 1], temperature)]
    assert float(tree_loss(distances, heights, temperature)) == pytest.approx(sum(each) / max(len(each), 1))


def test_the_loss_falls_to_zero_where_the_tree_is_met_and_is_zero_beyond_the_sentences():
    distances, heights = batch((7, 4))
    met = [float(tree_loss(heights.double(), heights, temperature)) for temperature in (1.0, 0.5, 0.02)]
    assert met[0] > met[1] > met[2] and met[2] < 1e-9
    padded = [torch.cat((each, torch.full((50, 2), fill).to(each))) for each, fill in ((distances, 9.0), (heights, 0))]
    assert float(tree_loss(padded[0], padded[1], 0.1)) == float(tree_loss(distances, heights, 0.1))
    flat = distances.clone().requires_grad_()
    tree_loss(flat, torch.zeros_like(heights), 0.1).backward()
    assert flat.grad is not None and not flat.grad.any()


def test_the_gradient_of_the_loss():
    distances, heights = batch((6, 9, 2), seed=4)
    assert torch.autograd.gradcheck(lambda far: tree_loss(far, heights, 0.3), distances.requires_grad_())


def test_a_step_down_the_loss_alone_makes_the_trees():
    distances, heights = batch((12, 8, 5), seed=2)
    distances.requires_grad_()
    optimizer = torch.optim.SGD([distances], lr=1.0)
    for _ in range(500):
        optimizer.zero_grad()
        tree_loss(distances, heights, 0.05).backward()
        optimizer.step()
    for b, n in enumerate((12, 8, 5)):
        far, high = (each[1 : n + 1, b].tolist() for each in (distances, heights))
        assert distances_to_spans(far, "unbiased") == distances_to_spans(high, "unbiased")


def test_windows_have_the_heights_of_their_words():
    tokens = np.array([4, 5, 6, EOS, 7, EOS, 2, 3, EOS], np.int32)
    heights = np.array([0, 2, 1, 0, 0, 0, 0, 1, 0], np.int16)
    for window in map(SentenceBatches(tokens, 2, EOS, 1, 1, heights).__getitem__, range(2)):
        assert window.heights_TB is not None and window.lengths_B is not None
        for b, length in enumerate(window.lengths_B):
            of = {4: [0, 0, 2, 1], 7: [0, 0], 2: [0, 0, 1]}[window.targets_TB[0, b]]
            assert window.heights_TB[:length, b].tolist() == of and not window.heights_TB[length:, b].any()
        assert (
            window.constituents == (window.heights_TB > 1).sum()
            and window.part(1, 2).constituents == window.constituents / 2
        )
        assert window.part(1, 2).heights_TB.tolist() == window.heights_TB[:, window.heights_TB.shape[1] // 2 :].tolist()
    assert SentenceBatches(tokens, 2, EOS, 1, 1)[0].heights_TB is None


@pytest.fixture
def task(tmp_path):
    """Language modelling of a small text, with right-branching trees."""
    words, random_ = list("abcdef"), random.Random(1)
    (tmp_path / "text").mkdir()
    for name in ("train", "valid"):
        lines = [" ".join(random_.choices(words, k=random_.randint(1, 9))) for _ in range(30)]
        (tmp_path / "text" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    corpus = Corpus(find_splits(tmp_path / "text"), min_count=1)
    heights = {}
    for split in ("train", "valid"):
        ends = np.flatnonzero(corpus[split] == EOS)
        sizes = np.diff(ends, prepend=-1) - 1
        heights[split] = np.array([h for n in sizes for h in [*spans_to_heights(right(n), n), 0]], np.int16)
    return LanguageModelling(corpus, Teacher.of(corpus, heights, [{"run": "right"}], DistilConfig(2.0, 2)))


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_the_gradient_flows_through_the_gates_of_every_backend(task, backend):
    """The tree loss of a batch by finite differences, in float64, without dropout."""
    torch.manual_seed(3)
    model = LanguageModel(replace(MODEL, vocabulary_size=len(task.corpus.vocabulary)), backend).double().eval()
    batch = task.batches(TrainingConfig(unit="sentence", batch_size=4), 1)[2]

    def loss():
        return task.loss(model, TrainingConfig(unit="sentence"), batch, None, batch.count, torch.device("cpu")).penalty

    loss().backward()
    weight = model.layers[1].weight_hh_l0
    for place in ((0, 0), (26, 3), (28, 1), (29, 5)):  # rows of the input gate, of the master gates
        slope, (numbers, h) = weight.grad[place].item(), (weight.data, 1e-6)
        numbers[place] += h
        above = loss().item()
        numbers[place] -= 2 * h
        below = loss().item()
        numbers[place] += h
        assert slope == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-9)
    assert model.layers[0].weight_hh_l0.grad.any() and model.decoder.bias.grad is None


def test_the_loss_is_the_language_models_and_the_weighted_trees(task):
    model = LanguageModel(replace(MODEL, vocabulary_size=len(task.corpus.vocabulary)))
    training = TrainingConfig(unit="sentence", batch_size=4)
    batch = task.batches(training, 1)[1]
    losses = []
    for one in (task, LanguageModelling(task.corpus)):
        torch.manual_seed(5)
        losses.append(one.loss(model, training, batch, None, batch.count, torch.device("cpu")))
    assert losses[0].nats.item() == losses[1].nats.item() and losses[1].penalty == 0
    torch.manual_seed(5)
    gate = model(
        torch.from_numpy(batch.inputs_TB), lengths=batch.lengths_B.tolist(), return_gates=("master_forget",)
    ).gates
    assert list(gate[1]) == ["master_forget"]
    alone = tree_loss(1 - gate[1]["master_forget"].mean(-1), torch.from_numpy(batch.heights_TB), 0.02)
    assert losses[0].penalty.item() == pytest.approx(2 * alone.item())


def test_a_score_tells_loss_and_f1_against_the_teacher(task):
    model = LanguageModel(replace(MODEL, vocabulary_size=len(task.corpus.vocabulary))).train()
    found = task.score(model, TrainingConfig())
    assert found.loss == pytest.approx(found.shown["loss_nats"] + 2 * found.shown["tree_loss"]) and model.training
    assert 0 <= found.shown["tree_f1"] <= 100
    lines = task.corpus.files["valid"].read_text().splitlines()
    own = [parse.spans for parse in parse_sentences(model, task.corpus.vocabulary, [line.split() for line in lines])]
    from gatedrnn.trees import agreement

    lengths = [len(line.split()) for line in lines]
    expected = agreement(own, [right(n) for n in lengths], lengths)
    assert found.shown["tree_f1"] == pytest.approx(expected, abs=1e-4)
    assert set(LanguageModelling(task.corpus).score(model, TrainingConfig()).shown) == {"loss_nats", "perplexity"}


def test_a_teacher_is_read_as_it_was_written(task, tmp_path):
    task.teacher.save(tmp_path)
    again = Teacher.load(tmp_path)
    assert again is not None and again.runs == [{"run": "right"}] and again.how == DistilConfig(2.0, 2)
    assert all(np.array_equal(again.heights[split], task.teacher.heights[split]) for split in ("train", "valid"))
    assert LanguageModelling(task.corpus, again).checksum("train") == task.checksum("train")
    assert task.checksum("train") != LanguageModelling(task.corpus).checksum("train")
    assert replace(task.teacher, how=DistilConfig(1.0, 2)).checksum("train", 0) != task.teacher.checksum("train", 0)
    assert Teacher.load(tmp_path / "elsewhere") is None


def test_a_teacher_of_another_text_and_a_damaged_one_are_refused(task, tmp_path):
    task.teacher.save(tmp_path)
    valid = task.corpus.files["valid"]
    other = Corpus({"train": task.corpus.files["train"], "valid": task.corpus.files["train"]}, task.corpus.vocabulary)
    with pytest.raises(DataError, match=f"{valid.parent.name}: must hold the trees .*another valid text"):
        task.teacher.check_text(other, valid.parent.name)
    path = tmp_path / TEACHER_FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"teacher\.safetensors: is damaged"):
        Teacher.load(tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [({"weight": 0.0}, "distil.weight"), ({"temperature": -1.0}, "distil.temperature"), ({"layer": 0}, "distil.layer")],
)
def test_settings_out_of_range_are_named(values, said):
    with pytest.raises(ArgumentError, match=f"{said}.*{next(iter(values.values()))}"):
        DistilConfig(**values)


CPU = torch.device("cpu")
SENTENCES = TrainingConfig(unit="sentence", batch_size=4)


def student(task, window=None):
    torch.manual_seed(3)
    model = LanguageModel(replace(MODEL, vocabulary_size=len(task.corpus.vocabulary))).eval()
    for parameter in model.parameters():
        parameter.data *= 4
    if window is None:
        return model
    given = torch.from_numpy(window.inputs_TB), torch.from_numpy(window.lengths_B)
    with torch.no_grad():
        return model(given[0], lengths=given[1], return_gates=("master_forget",))


def test_the_loss_reads_the_layer_that_it_is_told(task):
    window = task.batches(SENTENCES, 1)[1]
    output, heights = student(task, window), torch.from_numpy(window.heights_TB)
    for layer in (1, 2):
        alone = tree_loss(1 - output.gates[layer - 1]["master_forget"].mean(-1), heights, 0.02)
        found = replace(task.teacher, how=DistilConfig(2.0, layer)).loss(output, window, CPU)
        assert found.item() == pytest.approx(2 * alone.item(), rel=1e-6)


def test_the_mean_of_the_parts_of_a_batch_is_that_of_the_batch(task):
    parts, differ = 2, 0
    for window in (task.batches(SENTENCES, 1)[k] for k in range(4)):
        each = [window.part(k, parts) for k in range(parts)]
        differ += len({int((part.heights_TB > 1).sum()) for part in each}) > 1
        losses = [float(task.teacher.loss(student(task, part), part, CPU)) for part in each]
        assert sum(losses) / parts == pytest.approx(
            float(task.teacher.loss(student(task, window), window, CPU)), rel=1e-5
        )
    assert differ


def test_gates_of_half_precision_are_averaged_in_float32(task):
    window = task.batches(SENTENCES, 1)[1]
    output = student(task, window)
    half = output._replace(gates=[{name: gate.bfloat16() for name, gate in layer.items()} for layer in output.gates])
    wide = output._replace(gates=[{name: gate.float() for name, gate in layer.items()} for layer in half.gates])
    assert torch.equal(task.teacher.loss(half, window, CPU), task.teacher.loss(wide, window, CPU))


def test_the_loss_of_a_batch_of_two_word_sentences_is_zero():
    distances, heights = batch((2, 2))
    distances.requires_grad_()
    loss = tree_loss(distances, heights, 0.02, 0.0)  # as a window counts its constituents
    assert loss.item() == 0
    loss.backward()
    assert not distances.grad.any()


def by_sentence(task, model, split):
    """Of each sentence read by itself: distances and heights of its words."""
    tokens, heights = task.corpus[split], task.teacher.heights[split]
    ends = np.flatnonzero(tokens == EOS) + 1
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        ids = torch.tensor([EOS, *tokens[start : end - 1].tolist()])[:, None]
        with torch.no_grad():
            gate = model(ids, return_gates=True).gates[1]["master_forget"]
        yield (1 - gate.mean(-1))[1:, 0].tolist(), heights[start : end - 1].tolist()


def test_a_scores_tree_loss_is_the_mean_over_constituents(task):
    model = student(task)
    losses = [loss for far, high in by_sentence(task, model, "valid") for loss in by_loop(far, high, 0.02)]
    found = task.score(model, TrainingConfig()).shown["tree_loss"]
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_sentences_without_a_tree_are_in_no_score(task):
    model = student(task)
    lines = [line.split() for line in task.corpus.files["valid"].read_text().splitlines()]
    heights, known = task.teacher.heights["valid"].copy(), [len(line) <= 5 for line in lines]
    start = 0
    for line, kept in zip(lines, known, strict=True):
        heights[start : start + len(line)] *= kept
        start += len(line) + 1
    task.teacher = replace(task.teacher, heights={**task.teacher.heights, "valid": heights})
    few = [line for line, kept in zip(lines, known, strict=True) if kept]
    own = [parse.spans for parse in parse_sentences(model, task.corpus.vocabulary, few)]
    found = task.score(model, TrainingConfig()).shown["tree_f1"]
    assert 0 < len(few) < len(lines)
    assert found == pytest.approx(agreement(own, [right(len(line)) for line in few], [*map(len, few)]), abs=1e-4)


def test_other_trees_of_the_same_text_have_another_checksum(task):
    other = {**task.teacher.heights, "train": task.teacher.heights["train"].copy()}
    other["train"][0] += 1
    assert replace(task.teacher, heights=other).checksum("train", 5) != task.teacher.checksum("train", 5)
    assert replace(task.teacher, heights=other).checksum("valid", 5) == task.teacher.checksum("valid", 5)


def test_padding_of_several_words_has_no_height():
    tokens = np.array([4, 5, 6, 7, 4, EOS, 3, EOS], np.int32)
    heights = np.array([0, 4, 3, 2, 1, 0, 0, 0], np.int16)
    window = SentenceBatches(tokens, 2, EOS, 1, 1, heights)[0]
    short = int(window.lengths_B.argmin())
    assert window.inputs_TB.shape == (6, 2) and window.lengths_B[short] == 2
    assert not window.heights_TB[:, short].any() and window.heights_TB[:, 1 - short].tolist() == [0, 0, 4, 3, 2, 1]
