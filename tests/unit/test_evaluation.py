"""Evaluation by carried and reset state, continuous cache, dynamic evaluation, surprisal and sampling, on tiny models."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from tiny_levels import LEVELS, of_level
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import EOS, Corpus, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig, generate, surprisals
from gatedrnn.models import surprisal as surprisal_module
from gatedrnn.models.saving import save_tensors
from gatedrnn.studies.compression import Scheme, compressed
from gatedrnn.studies.parsing import align_lines, surprisal_records
from gatedrnn.tasks.cache import Cache
from gatedrnn.tasks.dynamic import Dynamic
from gatedrnn.tasks.perplexity import evaluate

WORDS = ["the", "cat", "sees", "a", "dog", "and", "runs", "off"]
VOCABULARY = Vocabulary.build([WORDS], min_count=1)
EOS_ID = VOCABULARY.ids[EOS]
NO_CACHE = Cache(lambda_=0.0)


def make_model(cell="onlstm", seed=1, scale=6.0, **options):
    """An untrained model with pronounced predictions, in double precision and training mode, with dropout."""
    torch.manual_seed(seed)
    own = {"options": {"chunk_size": 2}} if cell == "onlstm" else {}
    options = {"embedding_size": 6, "hidden_sizes": (8, 6), "output_dropout": 0.3} | own | options
    model = LanguageModel(LanguageModelConfig(len(VOCABULARY), cell=cell, **options), backend="reference").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def make_text(sentences=12, seed=0, longest=7):
    rng = np.random.default_rng(seed)
    texts = [rng.integers(2, len(VOCABULARY), rng.integers(1, longest + 1)).tolist() for _ in range(sentences)]
    return texts, np.array([i for ids in texts for i in [*ids, EOS_ID]], np.int32)


@pytest.fixture(params=["onlstm", "gru"])
def model(request):
    return make_model(request.param)


def naive(model, tokens):
    """Probability of each token given all before, and the hidden states [N, H] they were predicted from."""
    inputs = torch.tensor([EOS_ID, *tokens[:-1].tolist()])[:, None]
    with torch.no_grad():
        output = model.eval()(inputs)
    probabilities = torch.softmax(output.logits[:, 0], -1)
    return probabilities, output.hidden[:, 0]


def perplexity(probabilities):
    return math.exp(-sum(math.log(p) for p in probabilities) / len(probabilities))


# ---------------------------------------------------------------- carried and reset


@pytest.mark.parametrize("sequence_length", [1, 7, 1000])
def test_carried_state_reads_the_text_as_one(model, sequence_length):
    tokens = make_text()[1]
    expected = perplexity([float(p[t]) for p, t in zip(naive(model, tokens)[0], tokens, strict=True)])
    found = evaluate(model, tokens, VOCABULARY, sequence_length=sequence_length)
    assert found.perplexity == pytest.approx(expected, rel=1e-9)
    assert found.tokens == len(tokens)


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "last sentence cut"])
def test_reset_state_is_one_sentence_at_a_time(model, monkeypatch, ends):
    texts, tokens = make_text(150)
    if not ends:
        texts[-1], tokens = texts[-1][:3], tokens[: len(tokens) - 1 - max(0, len(texts[-1]) - 3)]
    sentences = [[*ids, EOS_ID] for ids in texts]
    if not ends:
        sentences[-1] = texts[-1]
    nats = sum(
        -math.log(float(p[t])) for ids in sentences for p, t in zip(naive(model, np.array(ids))[0], ids, strict=True)
    )
    found = evaluate(model, tokens, VOCABULARY, reset=True)
    assert found.tokens == len(tokens)
    assert found.loss_nats == pytest.approx(nats / len(tokens), rel=1e-9)
    assert found.loss_nats != pytest.approx(evaluate(model, tokens, VOCABULARY).loss_nats, rel=1e-4)
    monkeypatch.setattr(surprisal_module, "_LOGITS", 1)
    monkeypatch.setattr(surprisal_module, "_SORTED_SEQUENCES", 40)
    assert evaluate(model, tokens, VOCABULARY, reset=True).loss_nats == pytest.approx(found.loss_nats, rel=1e-12)


@pytest.mark.parametrize("how", [{}, {"reset": True}, {"cache": Cache()}, {"dynamic": Dynamic()}])
def test_the_mode_of_the_model_is_put_back_and_no_token_is_an_error(model, how):
    assert model.training
    evaluate(model, make_text(3)[1], VOCABULARY, **how)
    assert model.training
    with pytest.raises(DataError, match="must hold at least one token; got 0"):
        evaluate(model, np.array([], np.int32), VOCABULARY, **how)


@pytest.mark.parametrize("how", [{"cache": Cache()}, {"dynamic": Dynamic()}])
def test_reset_excludes_what_reads_on(model, how):
    with pytest.raises(ArgumentError, match=r"evaluate\.reset: cannot be combined with a cache or dynamic evaluation"):
        evaluate(model, make_text(3)[1], VOCABULARY, reset=True, **how)


# ---------------------------------------------------------------- continuous cache


def naive_cache(model, tokens, cache):
    """Grave et al. 2017, eq. 2-3, one token at a time."""
    probabilities, hidden = naive(model, tokens)
    mixed = []
    for t, token in enumerate(tokens):
        p = float(probabilities[t, token])
        past = range(max(0, t - cache.window), t)
        if past:
            weights = {i: math.exp(cache.theta * float(hidden[t] @ hidden[i])) for i in past}
            cached = sum(w for i, w in weights.items() if tokens[i] == token) / sum(weights.values())
            p = (1 - cache.lambda_) * p + cache.lambda_ * cached
        mixed.append(p)
    return mixed


@pytest.mark.parametrize(
    "cache", [Cache(), Cache(window=1), Cache(window=5, theta=2.0, lambda_=0.4), Cache(9, 0.1, 0.9)]
)
@pytest.mark.parametrize("sequence_length", [1, 4, 70])
def test_the_cache_is_exact(model, cache, sequence_length):
    tokens = make_text(10)[1]
    found = evaluate(model, tokens, VOCABULARY, sequence_length=sequence_length, cache=cache)
    assert found.perplexity == pytest.approx(perplexity(naive_cache(model, tokens, cache)), rel=1e-9)
    assert found.tokens == len(tokens)


def test_each_stretch_has_a_cache_of_its_own(model):
    tokens, cache = make_text(9)[1], Cache(6, 1.0, 0.3)
    size = -(-len(tokens) // 4)
    parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    assert len(parts[-1]) < size
    nats = 0.0
    for k, part in enumerate(parts):  # a later stretch is read from the token before it
        before = np.array([EOS_ID if k == 0 else parts[k - 1][-1]])
        with torch.no_grad():
            output = model.eval()(torch.tensor([*before, *part[:-1]])[:, None])
        log_p = torch.log_softmax(output.logits[:, 0], -1)
        hidden = output.hidden[:, 0]
        for t, token in enumerate(part):
            p, past = float(log_p[t, token].exp()), range(max(0, t - cache.window), t)
            if past:
                weights = torch.softmax(cache.theta * hidden[list(past)] @ hidden[t], 0)
                cached = sum(float(w) for w, i in zip(weights, past, strict=True) if part[i] == token)
                p = (1 - cache.lambda_) * p + cache.lambda_ * cached
            nats -= math.log(p)
    found = evaluate(model, tokens, VOCABULARY, batch_size=4, sequence_length=3, cache=cache)
    assert found.loss_nats == pytest.approx(nats / len(tokens), rel=1e-9)


def test_a_cache_without_share_is_the_model_alone(model):
    tokens = make_text()[1]
    plain = evaluate(model, tokens, VOCABULARY)
    assert evaluate(model, tokens, VOCABULARY, cache=NO_CACHE).loss_nats == pytest.approx(plain.loss_nats, rel=1e-12)


def test_a_sharp_cache_stays_finite():
    model = make_model(scale=12.0).float()
    assert math.isfinite(evaluate(model, make_text()[1], VOCABULARY, cache=Cache(theta=1e4)).loss_nats)


def test_a_cache_helps_where_words_repeat(model):
    tokens = np.array([2, 3, EOS_ID] * 30, np.int32)
    found = evaluate(model, tokens, VOCABULARY, cache=Cache(theta=0.001, lambda_=0.5))
    assert found.perplexity < 0.7 * evaluate(model, tokens, VOCABULARY).perplexity


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "cache.window: must be a positive integer; got 0"),
        ({"theta": 0.0}, "cache.theta: must be a finite number above 0; got 0"),
        ({"theta": math.nan}, "cache.theta: must be a finite number above 0; got nan"),
        ({"lambda_": 1.0}, r"cache.lambda: must lie in \[0, 1\); got 1"),
        ({"lambda_": -0.1}, r"cache.lambda: must lie in \[0, 1\); got -0.1"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Cache(**settings)


# ---------------------------------------------------------------- dynamic evaluation


@torch.no_grad()
def move(weights, originals, gradients, dynamic):
    """One step of dynamic evaluation, in place, of the gradients of all segments so far."""
    for k, (w, original) in enumerate(zip(weights, originals, strict=True)):
        root = torch.stack([g[k] ** 2 for g in gradients]).mean(0).sqrt()
        w += dynamic.decay * (original - w) - dynamic.rate * gradients[-1][k] / (root + 2e-3)


def naive_dynamic(model, tokens, dynamic):
    """Krause et al. 2018 with the mean squares of the segments so far, on a copy, by torch's own loss."""
    model = make_copy(model)
    weights = list(model.parameters())
    originals, gradients, states, nats = [w.detach().clone() for w in weights], [], None, 0.0
    for start in range(0, len(tokens), dynamic.segment):
        targets = torch.as_tensor(tokens[start : start + dynamic.segment]).long()
        before = EOS_ID if start == 0 else int(tokens[start - 1])
        output = model(torch.cat([torch.tensor([before]), targets[:-1]])[:, None], states)
        loss = F.cross_entropy(output.logits[:, 0], targets)
        nats += float(loss.detach()) * len(targets)
        gradients.append(torch.autograd.grad(loss, weights))
        states = [tuple(state.detach() for state in layer) for layer in output.states]
        move(weights, originals, gradients, dynamic)
    return nats / len(tokens)


def make_copy(model):
    other = LanguageModel(model.config, backend="reference").double().eval()
    other.load_state_dict(model.state_dict())
    return other


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("dynamic", [Dynamic(), Dynamic(rate=0.01, decay=0.1, segment=7), Dynamic(0.001, 0.0, 1)])
def test_dynamic_evaluation_is_exact(model, dynamic):
    tokens = make_text()[1]
    found = evaluate(model, tokens, VOCABULARY, dynamic=dynamic)
    assert found.loss_nats == pytest.approx(naive_dynamic(model, tokens, dynamic), rel=1e-9)
    assert found.loss_nats != pytest.approx(evaluate(model, tokens, VOCABULARY).loss_nats, rel=1e-6)


def test_dynamic_evaluation_learns_from_what_repeats(model):
    tokens = np.array([2, 3, 4, 5, EOS_ID] * 40, np.int32)
    found = evaluate(model, tokens, VOCABULARY, dynamic=Dynamic(rate=0.02))
    assert found.perplexity < 0.8 * evaluate(model, tokens, VOCABULARY).perplexity


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("cache", [None, Cache(20, 0.3, 0.2)])
def test_dynamic_evaluation_leaves_no_trace(model, batch_size, cache):
    tokens, before = make_text()[1], weights_of(model)
    plain = evaluate(model, tokens, VOCABULARY, batch_size=batch_size, cache=cache)
    found = evaluate(model, tokens, VOCABULARY, batch_size=batch_size, cache=cache, dynamic=Dynamic(rate=0.01))
    assert found.loss_nats != plain.loss_nats and found.tokens == len(tokens)
    assert same(before, weights_of(model))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert evaluate(model, tokens, VOCABULARY, batch_size=batch_size, cache=cache) == plain


@pytest.mark.parametrize("cache", [None, Cache(20, 0.3, 0.2)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_rate_of_zero_learns_nothing(model, cache, decay):
    tokens = make_text()[1]
    plain = evaluate(model, tokens, VOCABULARY, cache=cache)
    found = evaluate(model, tokens, VOCABULARY, cache=cache, dynamic=Dynamic(0.0, decay, 9))
    assert found.loss_nats == pytest.approx(plain.loss_nats, rel=1e-12)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_weights_are_put_back_after_an_interruption(model, monkeypatch, error):
    before, calls = weights_of(model), []
    forward = LanguageModel.forward

    def interrupted(self, *arguments, **options):
        calls.append(same(before, weights_of(self)))
        if len(calls) == 4:
            raise error
        return forward(self, *arguments, **options)

    monkeypatch.setattr(LanguageModel, "forward", interrupted)
    with pytest.raises(error):
        evaluate(model, make_text(30)[1], VOCABULARY, dynamic=Dynamic(rate=0.01))
    assert calls == [True, False, False, False]
    assert same(before, weights_of(model)) and model.training


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": -1.0}, r"dynamic.rate: must lie in \[0, 1\]; got -1"),
        ({"rate": math.nan}, r"dynamic.rate: must lie in \[0, 1\]; got nan"),
        ({"decay": 1.5}, "dynamic.decay: must be a probability between 0 and 1; got 1.5"),
        ({"segment": 0}, "dynamic.segment: must be a positive integer; got 0"),
    ],
)
def test_a_dynamic_evaluation_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Dynamic(**settings)


# ---------------------------------------------------------------- surprisal


@pytest.mark.parametrize("carried", [False, True])
def test_surprisal_of_each_word_and_of_the_end(model, carried):
    texts, tokens = make_text(20)
    found = list(surprisals(model, iter(texts), EOS_ID, carried=carried))
    assert [len(bits) for bits in found] == [len(ids) + 1 for ids in texts]
    if carried:
        expected = [-math.log2(float(p[t])) for p, t in zip(naive(model, tokens)[0], tokens, strict=True)]
    else:
        whole = [[*ids, EOS_ID] for ids in texts]
        expected = [
            -math.log2(float(p[t])) for ids in whole for p, t in zip(naive(model, np.array(ids))[0], ids, strict=True)
        ]
    assert [b for bits in found for b in bits] == pytest.approx(expected, rel=1e-9)
    how = {} if carried else {"reset": True}
    evaluation = evaluate(model, tokens, VOCABULARY, **how)
    total = sum(map(sum, found))
    assert total == pytest.approx(evaluation.tokens * evaluation.loss_nats / math.log(2), rel=1e-9)


def test_surprisal_handles_no_sentence_one_end_alone_and_a_long_one(model):
    assert list(surprisals(model, [], EOS_ID)) == []
    with torch.device("meta"):  # where a person's own tensors are made
        assert list(map(len, surprisals(model, [[2, 3], [2]], EOS_ID))) == [3, 2]
    assert [len(bits) for bits in surprisals(model, [[], [2] * 500], EOS_ID)] == [1, 501]


def test_a_long_sentence_does_not_lengthen_many_short_ones(model):
    drawn = torch.Generator().manual_seed(1)
    lengths = [*range(1, 60), 300, 12_000, 4_000, *(torch.randint(1, 40, (90,), generator=drawn).tolist())]
    found = list(surprisal_module._batches(lengths))
    assert sorted(k for batch in found for k in batch) == list(range(len(lengths)))
    places = sum(len(batch) * max(lengths[k] for k in batch) for batch in found)
    assert places < 2.5 * sum(lengths) and len(found) < 12
    assert list(surprisal_module._batches([])) == []


def test_what_gives_no_perplexity_that_is_a_number_is_named(monkeypatch):
    model, tokens = make_model(scale=100.0), np.array([2, 3, EOS_ID] * 9)
    with pytest.raises(ArgumentError, match=r"temperature: must be high enough .*; got 0.001: \d+ nats a token"):
        evaluate(model, tokens, VOCABULARY, temperature=0.001)
    for how in ({"dynamic": Dynamic(rate=0.001)}, {"temperature": 0.9}):
        with pytest.raises(CheckpointError, match="The weights are damaged or too large"):
            evaluate(make_model(scale=1e5), tokens, VOCABULARY, **how)
    monkeypatch.setattr("gatedrnn.tasks.perplexity._adaptive", lambda *_: (9000.0, 10))
    with pytest.raises(ArgumentError, match=r"dynamic\.rate: must be low enough .*; got 0.001: 900 nats a token"):
        evaluate(model, tokens, VOCABULARY, dynamic=Dynamic(rate=0.001))


def test_surprisal_reads_no_further_than_it_must(model):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield [2, 3]

    next(surprisals(model, endless(), EOS_ID))
    assert len(taken) <= 1024
    taken.clear()
    next(surprisals(model, endless(), EOS_ID, carried=True))
    assert len(taken) == 1


def test_surprisal_refuses_a_foreign_id(model):
    with pytest.raises(ArgumentError, match="ids must lie in 0…9; got 99"):
        list(surprisals(model, [[2, 99]], EOS_ID))


ODD = "the old pilot\n\u200b\nthe <eos> pilot walks <eos>\n<eos>\n \u200b\ufeff \n<eos> <eos> a\n\n"


@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_bits_add_up_to_evaluate_also_for_odd_lines(tmp_path, level, carried, empty_lines):
    model, vocabulary = of_level(level)
    (tmp_path / "a.txt").write_text(ODD)
    tokens = Corpus({"test": tmp_path / "a.txt"}, vocabulary, empty_lines=empty_lines)["test"]
    found = evaluate(model, tokens, vocabulary, reset=not carried)
    lines = align_lines(vocabulary, ODD.splitlines(), "exact", empty_lines)
    records = list(surprisal_records(model, vocabulary, lines, carried=carried))
    assert sum(len(each) for one in records for each in one["tokens"]) == found.tokens
    bits = sum(sum(one["surprisal_bits"]) for one in records)
    assert bits == pytest.approx(found.tokens * found.loss_nats / math.log(2), rel=1e-9)


def test_tokens_of_bytes_are_readable_beside_their_surprisal():
    model, vocabulary = of_level("subword")
    for tokens in (False, True):
        (record,) = surprisal_records(model, vocabulary, align_lines(vocabulary, ["the old pilot"]), tokens=tokens)
        assert "".join(piece for each in record["tokens"] for piece in each).lstrip("▁") == "the▁old▁pilot<eos>"


# ---------------------------------------------------------------- sampling


def sample(model, words=40, seed=3, **how):
    return list(islice(generate(model.eval(), [EOS_ID], generator=torch.Generator().manual_seed(seed), **how), words))


def greedy(model, words=40):
    ids = [EOS_ID]
    with torch.no_grad():
        for _ in range(words):
            ids.append(int(model.eval()(torch.tensor(ids)[:, None]).logits[-1, 0].argmax()))
    return ids[1:]


def test_the_seed_decides(model):
    assert sample(model) == sample(model)
    assert sample(model) != sample(model, seed=4)
    assert sample(model, top_k=3, top_p=0.8) == sample(model, top_k=3, top_p=0.8)


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}, {"temperature": 1e-300}])
def test_every_way_to_be_greedy(model, how):
    assert sample(model, **how) == greedy(model)


def test_filters_wide_open_filter_nothing(model):
    plain = sample(model)
    assert sample(model, top_p=1.0) == sample(model, top_k=len(VOCABULARY)) == sample(model, top_k=10**9) == plain


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (None, 0.6), (4, 0.7)])
def test_filters_keep_the_most_probable(top_k, top_p):
    """Frequencies of the first word beside the distribution worked out by hand."""
    model = make_model(scale=1.5).eval()
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([[EOS_ID]])).logits[-1, 0] / 0.7, -1)
    order = p.argsort(descending=True)[: top_k or len(p)].tolist()
    mass, kept = 0.0, []
    for i in order:
        if mass >= top_p * float(p[order].sum()):
            break
        kept.append(i)
        mass += float(p[i])
    assert 1 < len(kept) < len(p)
    draws = [sample(model, 1, seed, temperature=0.7, top_k=top_k, top_p=top_p)[0] for seed in range(400)]
    assert set(draws) == set(kept)
    for i in kept:
        assert draws.count(i) / len(draws) == pytest.approx(float(p[i]) / mass, abs=0.08)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": 0.0}, "generate.temperature: must be a finite number above 0; got 0"),
        ({"top_k": 0}, "generate.top_k: must be a positive integer; got 0"),
        ({"top_p": 0.0}, r"generate.top_p: must lie in \(0, 1\]; got 0"),
        ({"top_p": 1.5}, r"generate.top_p: must lie in \(0, 1\]; got 1.5"),
        ({"top_p": math.nan}, r"generate.top_p: must lie in \(0, 1\]; got nan"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(model, how, message):
    with pytest.raises(ArgumentError, match=message):
        sample(model, 1, **how)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_temperature_is_a_number_above_zero(temperature):
    with pytest.raises(ArgumentError, match=r"evaluate\.temperature: must be a finite number above 0"):
        evaluate(make_model(), np.array([1, 2]), VOCABULARY, temperature=temperature)


def test_settings_of_another_type_are_told():
    for make in (Cache, Dynamic):
        for name in make.__dataclass_fields__:
            for value in ("x", None):
                with pytest.raises(ArgumentError, match=f"{make.__name__.lower()}\\.{name.strip('_')}: must "):
                    make(**{name: value})


def test_the_sharpest_cache_is_a_number_and_a_sharper_one_is_refused():
    tokens = np.random.default_rng(1).integers(2, len(VOCABULARY), 40)
    assert evaluate(make_model(), tokens, VOCABULARY, cache=Cache(theta=1e100)).perplexity > 1
    with pytest.raises(ArgumentError, match=r"cache\.theta: must be at most 1e\+100; got 1e\+101"):
        Cache(theta=1e101)


def test_modes_of_parts_and_compressed_weights_are_as_before(tmp_path):
    model, tokens = make_model(), np.random.default_rng(1).integers(2, len(VOCABULARY), 40)
    model.train().layers[0].eval()
    evaluate(model, tokens, VOCABULARY)
    assert model.training and not model.layers[0].training and model.layers[1].training
    make_model().float().save_pretrained(tmp_path)
    save_tensors(tmp_path, compressed(make_model().float(), Scheme("int8")))
    small = LanguageModel.from_pretrained(tmp_path)
    before = {name: type(value) for name, value in small.own_state_dict().items()}
    evaluate(small, tokens, VOCABULARY, dynamic=Dynamic())
    assert {name: type(value) for name, value in small.own_state_dict().items()} == before


def test_sampling_is_without_dropout_and_leaves_the_mode():
    model = make_model().train()
    first, second = (list(islice(generate(model, [1, 3], top_k=1), 12)) for _ in range(2))
    assert first == second == list(islice(generate(model.eval(), [1, 3], top_k=1), 12))
    model.train()
    next(generate(model, [1]))
    assert model.training
    with pytest.raises(ArgumentError, match=r"generate\.prompt: must have at least one id"):
        next(generate(model, []))


@pytest.mark.parametrize("batch_size", [2, 6])
def test_dynamic_evaluation_of_stretches_learns_from_the_mean_of_what_is_there(batch_size):
    """As `naive_dynamic`, over stretches of which the last is shorter."""
    tokens, dynamic = make_text()[1], Dynamic(rate=0.01, decay=0.1, segment=2)
    tokens = tokens[: (len(tokens) - 1) // batch_size * batch_size + 1]  # the last stretch ends before the others
    model = make_model("gru")
    copy = make_copy(model)
    stretch = -(-len(tokens) // batch_size)
    targets = torch.full((batch_size * stretch,), -100)
    targets[: len(tokens)] = torch.as_tensor(tokens).long()
    inputs = torch.cat([torch.tensor([EOS_ID]), targets[:-1]]).masked_fill_(targets == -100, EOS_ID)
    inputs_TB, targets_TB = (each.view(batch_size, stretch).t() for each in (inputs, targets))
    weights = list(copy.parameters())
    originals, gradients, states, nats = [w.detach().clone() for w in weights], [], None, 0.0
    for begin in range(0, stretch, dynamic.segment):
        here = slice(begin, begin + dynamic.segment)
        output = copy(inputs_TB[here], states)
        loss = F.cross_entropy(output.logits.flatten(0, 1), targets_TB[here].flatten())
        nats += float(loss.detach()) * int((targets_TB[here] != -100).sum())
        gradients.append(torch.autograd.grad(loss, weights))
        states = [tuple(state.detach() for state in layer) for layer in output.states]
        move(weights, originals, gradients, dynamic)
    found = evaluate(model, tokens, VOCABULARY, dynamic=dynamic, batch_size=batch_size)
    assert found.loss_nats == pytest.approx(nats / len(tokens), rel=1e-9)


def test_dynamic_evaluation_leaves_frozen_weights_alone():
    model, tokens = make_model("gru"), make_text()[1]
    model.embedding.weight.requires_grad_(False)
    found = evaluate(model, tokens, VOCABULARY, dynamic=Dynamic(rate=0.01))
    assert np.isfinite(found.loss_nats) and found != evaluate(model, tokens, VOCABULARY)
