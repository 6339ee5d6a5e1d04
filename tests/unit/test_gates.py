"""Gates: squashings, temperature, noise and the published bounds on both."""

import math

import numpy as np
import pytest
import torch

from gatedrnn import (
    CELLS,
    G2LSTM,
    LSTM,
    ONLSTM,
    ArgumentError,
    Gates,
    LanguageModelConfig,
    Recurrent,
    layers,
    syntactic_distance,
)
from gatedrnn.cells import Cell
from gatedrnn.gates import cumax, gumbel_noise, logistic_noise, sigmoid, straight_through, tail_cumax, uniform
from gatedrnn.sequence import draw_noise

T, B, D, H = 4, 3, 5, 6
SEED = torch.tensor([2**60 + 5])
LAYERS = [kind for kind in vars(layers).values() if isinstance(getattr(kind, "cell", None), Cell)]
# (cell, options, rows of its gates in order, gates that can be perturbed, gates that are by default)
LSTM_ROWS = [("input_gate", H), ("forget_gate", H), ("cell_candidate", H), ("output_gate", H)]
LSTM_ABLE = ["input_gate", "forget_gate", "output_gate"]
MASTERS = ["master_input", "master_forget"]
GRU_ROWS = [("reset_gate", H), ("update_gate", H), ("cell_candidate", H)]
TABLE = [
    ("mgu", {}, [("forget_gate", H), ("cell_candidate", H)], ["forget_gate"], ["forget_gate"]),
    ("layernorm", {}, LSTM_ROWS, [], []),
    ("slstm", {}, LSTM_ROWS, ["output_gate"], []),
    ("rnn", {"nonlinearity": "sigmoid"}, [("cell_candidate", H)], ["cell_candidate"], []),
    ("lstm", {}, LSTM_ROWS, LSTM_ABLE, LSTM_ABLE[:2]),
    ("g2lstm", {}, LSTM_ROWS, LSTM_ABLE, LSTM_ABLE[:2]),
    ("peephole", {}, LSTM_ROWS, LSTM_ABLE, LSTM_ABLE[:2]),
    ("peephole", {"peephole": "full"}, LSTM_ROWS, LSTM_ABLE, LSTM_ABLE[:2]),
    ("coupled", {}, LSTM_ROWS[1:], LSTM_ABLE[1:], LSTM_ABLE[1:2]),
    ("gru", {}, GRU_ROWS, ["reset_gate", "update_gate"], ["reset_gate", "update_gate"]),
    ("gru", {"reset_after": False}, GRU_ROWS, ["reset_gate", "update_gate"], ["reset_gate", "update_gate"]),
    (
        "onlstm",
        {"chunk_size": 3},
        [*LSTM_ROWS, *((m, 2) for m in MASTERS)],
        LSTM_ABLE + MASTERS,
        LSTM_ABLE[:2] + MASTERS,
    ),
    (
        "onlstm",
        {"chunk_size": 3, "split_points": "free"},
        [*LSTM_ROWS, *((m, 3) for m in MASTERS)],
        LSTM_ABLE + MASTERS,
        LSTM_ABLE[:2] + MASTERS,
    ),
]
EVERY_GATE = [
    pytest.param(cell, options, rows, named, id="-".join([cell, *map(str, options.values()), *map(str, named or ())]))
    for cell, options, rows, able, _ in TABLE
    if able
    for named in [None, *([name] for name in able)]
]
DEFAULTS = {(cell, *map(str, options.values())): default for cell, options, _, _, default in TABLE}


def make(cell, options, gates=Gates(), dtype=torch.float64):
    torch.manual_seed(1)
    return Recurrent(cell, D, H, 2, dtype=dtype, gates=gates, **options)


def test_table_covers_every_registered_cell():
    assert {cell for cell, *_ in TABLE} == set(CELLS)


# squashings


def test_cumax_and_its_tail_are_sums_of_the_softmax():
    z = np.random.default_rng(0).normal(size=(7, 9)) * 3
    e = np.exp(z - z.max(-1, keepdims=True))
    expected = np.cumsum(e / e.sum(-1, keepdims=True), -1)
    up, down = cumax(torch.from_numpy(z)), tail_cumax(torch.from_numpy(z))
    np.testing.assert_allclose(up, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(down, 1 - expected, rtol=0, atol=1e-14)
    assert (up.diff(dim=-1) >= 0).all() and (down.diff(dim=-1) <= 0).all()
    assert torch.count_nonzero(down[:, -1]) == 0


def test_the_tail_does_not_cancel_in_float32():
    z = torch.tensor([30.0, 0.0, 0.0])
    tail = math.exp(-30) / (1 + 2 * math.exp(-30))
    torch.testing.assert_close(tail_cumax(z)[:2], torch.tensor([2 * tail, tail]), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("squash", "expected"),
    [(sigmoid, [0, 1, 0, 0, 1]), (cumax, [0, 1, 1, 1, 1]), (tail_cumax, [1, 0, 0, 0, 0])],
)
def test_straight_through_is_hard_forward_and_soft_backward(squash, expected):
    z = torch.tensor([-1.0, 2.0, 0.0, -0.5, 0.25], dtype=torch.float64, requires_grad=True)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    hard = squash(z, True)
    assert hard.tolist() == expected
    (hard_gradient,) = torch.autograd.grad((hard * weights).sum(), z)
    (soft_gradient,) = torch.autograd.grad((squash(z) * weights).sum(), z)
    torch.testing.assert_close(hard_gradient, soft_gradient, rtol=0, atol=0)
    assert soft_gradient.abs().max() > 0.01


def test_straight_through_function():
    soft = torch.tensor([0.2, 0.9], requires_grad=True)
    value = straight_through(soft, torch.tensor([0.0, 1.0]))
    value.backward(torch.tensor([2.0, 3.0]))
    assert value.tolist() == [0.0, 1.0] and soft.grad.tolist() == [2.0, 3.0]


def test_straight_through_layer_gives_binary_gates_in_training_and_evaluation():
    layer = ONLSTM(D, H, gates=Gates(straight_through=True))
    for mode in (True, False):
        trace = layer.train(mode)(torch.randn(T, B, D), return_gates=True)[2][0]
        for name in ("input_gate", "forget_gate", "master_input", "master_forget"):
            assert set(trace[name].unique().tolist()) <= {0.0, 1.0}, name
        assert ((trace["output_gate"] > 0) & (trace["output_gate"] < 1)).all()


def test_syntactic_distance():
    gate = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 1.0, 1.0]])
    assert syntactic_distance(gate).tolist() == [0.5, 0.375]


# temperature


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("cell", "options", "rows", "named"), EVERY_GATE)
def test_temperature_divides_the_logits_of_its_gates(cell, options, rows, named, training):
    tau = {True: 0.3, False: 1.7}
    gates = Gates(tau[True], tau[False], names=None if named is None else tuple(named))
    warm, plain = make(cell, options, gates).train(training), make(cell, options)
    named = DEFAULTS[(cell, *map(str, options.values()))] if named is None else named
    scale = torch.cat(
        [torch.full((size,), 1 / tau[training] if n in named else 1.0, dtype=torch.float64) for n, size in rows]
    )
    peeps = [name for name, _ in rows if name != "cell_candidate"]
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            factor = scale
            if name.startswith("weight_ch"):
                factor = torch.cat(
                    [torch.full((H,), 1 / tau[training] if n in named else 1.0, dtype=torch.float64) for n in peeps]
                )
            parameter.mul_(factor if parameter.dim() == 1 else factor[:, None])
    x = torch.randn(T, B, D, dtype=torch.float64)
    output, finals, trace = warm(x, return_gates=True)
    expected, expected_finals, expected_trace = plain(x, return_gates=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(finals, expected_finals, rtol=0, atol=1e-13)
    torch.testing.assert_close(trace, expected_trace, rtol=0, atol=1e-13)
    if named:
        assert (output - make(cell, options).train(training)(x)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("noisy", [False, True])
def test_a_gate_is_the_squash_of_logits_plus_noise_over_temperature(noisy):
    tau = 0.4
    gates = Gates(tau, noise_probability=1.0, names=("forget_gate", "master_forget"))
    torch.manual_seed(0)
    layer = ONLSTM(D, H, chunk_size=2, dtype=torch.float64, gates=gates)
    x = torch.randn(1, B, D, dtype=torch.float64)
    noise = layer.sample_noise(1, B, torch.Generator().manual_seed(2)) if noisy else [None]
    trace = layer(x, return_gates=True, noise=noise)[2][0]
    logits = (x[0] @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0).detach().numpy()
    shifted = logits + (noise[0][0].numpy() if noisy else 0)
    f, master = shifted[:, H : 2 * H] / tau, shifted[:, 4 * H + 3 :] / tau
    np.testing.assert_allclose(trace["forget_gate"][0].detach(), 1 / (1 + np.exp(-f)), rtol=0, atol=1e-13)
    e = np.exp(master)
    np.testing.assert_allclose(
        trace["master_forget"][0].detach(), np.cumsum(e, -1) / e.sum(-1, keepdims=True), rtol=0, atol=1e-13
    )
    np.testing.assert_allclose(trace["input_gate"][0].detach(), 1 / (1 + np.exp(-logits[:, :H])), rtol=0, atol=1e-13)


# noise


@pytest.mark.parametrize(("cell", "options", "rows", "able", "default"), [row for row in TABLE if row[3]])
def test_noise_is_seedable_explicit_and_absent_in_evaluation(cell, options, rows, able, default):
    layer = make(cell, options, Gates(0.8, noise_probability=0.5, names=tuple(able)))
    x = torch.randn(T, B, D, dtype=torch.float64)

    def seeded(seed):
        torch.manual_seed(seed)
        return layer(x)[0]

    assert torch.equal(seeded(1), seeded(1)) and not torch.equal(seeded(1), seeded(2))
    drawn = [layer.sample_noise(T, B, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    first, same, other = (layer(x, noise=noise)[0] for noise in drawn)
    assert torch.equal(first, same) and not torch.equal(first, other)
    layer.eval()
    before = torch.get_rng_state()
    quiet = layer(x)[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(quiet, make(cell, options).eval()(x)[0], rtol=0, atol=0)


def test_explicit_noise_leaves_the_generator_alone_and_none_means_no_noise():
    layer, plain = make("lstm", {}, Gates(noise_probability=1.0)), make("lstm", {})
    x = torch.randn(T, B, D, dtype=torch.float64)
    noise = layer.sample_noise(T, B, torch.Generator().manual_seed(0))
    before = layer(x, noise=noise)[0]
    torch.rand(7)
    assert torch.equal(layer(x, noise=noise)[0], before)
    assert torch.equal(layer(x, noise=[None, None])[0], plain(x)[0])
    assert not torch.equal(before, plain(x)[0])
    assert plain.sample_noise(T, B) == [None, None]


@pytest.mark.parametrize(("cell", "options", "rows", "able", "default"), TABLE)
def test_noise_stays_in_the_rows_of_perturbed_gates(cell, options, rows, able, default):
    for named in (None, able[:1]):
        gates = Gates(noise_probability=1.0, names=None if named is None else tuple(named))
        noise = draw_noise(make(cell, options).spec, gates, 7, 5, SEED, torch.float64)
        if noise is None:
            assert not (default if named is None else named)
            continue
        assert noise.shape == (7, 5, sum(size for _, size in rows)) and noise.dtype == torch.float64
        for (name, _), block in zip(rows, noise.split([size for _, size in rows], -1), strict=True):
            concerned = name in (default if named is None else named)
            assert torch.count_nonzero(block) == (block.numel() if concerned else 0), name


def test_one_gate_in_five_is_perturbed_and_a_split_point_as_a_whole():
    spec = ONLSTM(2, 12, chunk_size=3).spec
    noise = draw_noise(spec, Gates(noise_probability=0.2), 200, 50, SEED)
    touched = (noise != 0).float()
    sigma = math.sqrt(0.2 * 0.8 / (200 * 50))
    for rows in (slice(0, 12), slice(12, 24)):
        assert abs(touched[..., rows].mean() - 0.2) < 5 * sigma / math.sqrt(12)
        assert 0 < touched[..., rows].mean(-1).std() < 0.2
    for rows in (slice(48, 52), slice(52, 56)):
        assert set(touched[..., rows].mean(-1).unique().tolist()) == {0.0, 1.0}
        assert abs(touched[..., rows].mean() - 0.2) < 5 * sigma
    both = touched[..., 48] * touched[..., 52]
    assert abs(both.mean() - 0.04) < 5 * math.sqrt(0.04 * 0.96 / 10000)


@pytest.mark.parametrize("draw", [logistic_noise, gumbel_noise])
def test_noise_functions_follow_their_distribution(draw):
    found = draw(uniform(SEED, torch.arange(300), 500).double())
    assert torch.isfinite(found).all()
    for point in (-2.0, -0.5, 0.0, 1.0, 3.0):
        share = 1 / (1 + math.exp(-point)) if draw is logistic_noise else math.exp(-math.exp(-point))
        assert abs(float((found <= point).double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / 150_000)


@pytest.mark.parametrize("alpha", [-2.0, 0.0, 1.5])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.4])
def test_gumbel_gate_obeys_its_bound(alpha, epsilon):
    tau, count = 0.9, 200_000
    noise = logistic_noise(uniform(SEED, torch.arange(count // 100), 100).double().flatten())
    share = float((sigmoid((alpha + noise) / tau) >= 1 - epsilon).double().mean())
    p = 1 / (1 + math.exp(-alpha))
    slack = 4 * math.sqrt(0.25 / count)
    assert p - tau / 4 * math.log(1 / epsilon) - slack <= share <= p + slack
    exact = 1 / (1 + math.exp(-(alpha - tau * math.log((1 - epsilon) / epsilon))))
    assert abs(share - exact) < slack


def test_gumbel_split_points_of_a_layer_follow_the_softmax():
    gates = Gates(temperature=0.5, noise_probability=1.0, straight_through=True, names=("master_forget",))
    layer, alpha = ONLSTM(1, 5, gates=gates), torch.tensor([0.5, -1.0, 1.0, 0.0, -0.5])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[-5:] = alpha
    torch.manual_seed(3)
    with torch.no_grad():
        trace = layer(torch.zeros(20, 1000, 1), return_gates=True)[2][0]
    splits = (1 - trace["master_forget"]).sum(-1).long().flatten()
    counts, expected = torch.bincount(splits, minlength=5), 20_000 * torch.softmax(alpha, -1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert counts.sum() == 20_000 and chi_square < 23.5  # 4 degrees of freedom, p = 1e-4


# G²-LSTM and the checks of Gates


def test_g2_defaults_are_the_papers_and_evaluation_is_the_plain_lstm():
    torch.manual_seed(0)
    layer, plain = G2LSTM(D, H), LSTM(D, H)
    plain.load_state_dict(layer.state_dict())
    assert layer.gates == Gates(0.9, 1.0, 0.2, False, ("input_gate", "forget_gate")) == CELLS["g2lstm"].gates
    x = torch.randn(T, B, D)
    assert torch.equal(layer.eval()(x)[0], plain.eval()(x)[0])
    assert not torch.equal(layer.train()(x)[0], plain.train()(x)[0])


def test_g2_takes_an_evaluation_temperature():
    layer = G2LSTM(D, H, gates=Gates(0.5, evaluation_temperature=0.2, noise_probability=0.2)).eval()
    sharp = LSTM(D, H, gates=Gates(evaluation_temperature=0.2, names=("input_gate", "forget_gate"))).eval()
    sharp.load_state_dict(layer.state_dict())
    x = torch.randn(T, B, D)
    assert layer.gates.temperature == 0.5 and torch.equal(layer(x)[0], sharp(x)[0])


def test_g2_keeps_all_of_the_gates_that_it_is_given():
    assert G2LSTM(D, H, gates=None).gates == CELLS["g2lstm"].gates
    assert G2LSTM(D, H, temperature=0.5).gates == Gates(0.5, 1.0, 0.2, False, ("input_gate", "forget_gate"))
    for gates in (Gates(), Gates(0.5, noise_probability=0.3), Gates(noise_probability=0.4, names=("forget_gate",))):
        layer = G2LSTM(D, H, gates=gates)
        assert layer.gates == gates == Recurrent("g2lstm", D, H, gates=gates).gates
        assert G2LSTM(D, H, gates=gates, temperature=gates.temperature).gates == gates
    assert not any(noise is not None for noise in G2LSTM(D, H, gates=Gates()).sample_noise(T, B))


@pytest.mark.parametrize("field", ["temperature", "noise_probability"])
def test_g2_refuses_an_argument_that_its_gates_contradict(field):
    rule = rf"^G2LSTM\.{field}: must equal gates\.{field} where both are given; got {field}=0\.7, gates=Gates\("
    with pytest.raises(ArgumentError, match=rule):
        G2LSTM(D, H, gates=Gates(0.5, noise_probability=0.3), **{field: 0.7})


# checkpoints


@pytest.mark.parametrize("names", [None, ("input_gate",)])
def test_a_checkpoint_that_holds_gates_loads_weights_only(tmp_path, names):
    gates = Gates(0.9, noise_probability=0.2, names=names)
    config = LanguageModelConfig(11, "lstm", 4, (4,), gates=gates)
    checkpoint = {
        "state_dict": LSTM(D, H, gates=gates).state_dict(),
        "hyper_parameters": {"gates": gates, "config": config},
    }
    torch.save(checkpoint, tmp_path / "last.ckpt")
    loaded = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert loaded["hyper_parameters"] == checkpoint["hyper_parameters"]
    assert loaded["state_dict"].keys() == checkpoint["state_dict"].keys()


@pytest.mark.parametrize("name", CELLS)
def test_a_pickled_layer_needs_its_class_allowed_as_torchs_does(tmp_path, name):
    x = torch.randn(T, B, D)
    for layer in (Recurrent(name, D, H, gates=Gates(0.9)).eval(), *(k(D, H) for k in LAYERS if k.cell.name == name)):
        torch.save(layer, tmp_path / "layer.pt")
        left = torch.serialization.get_unsafe_globals_in_checkpoint(tmp_path / "layer.pt")
        assert left == [f"{type(layer).__module__}.{type(layer).__name__}"]
        with torch.serialization.safe_globals([type(layer)]):
            loaded = torch.load(tmp_path / "layer.pt", weights_only=True)
        assert torch.equal(loaded.eval()(x)[0], layer.eval()(x)[0]) and loaded.gates == layer.gates


@pytest.mark.parametrize("field", ["temperature", "evaluation_temperature"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_temperatures_must_be_finite_and_above_zero(field, value):
    with pytest.raises(ArgumentError) as caught:
        Gates(**{field: value})
    assert str(caught.value).startswith(f"Gates.{field}: must be a finite number above 0; got {value!r}.")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, True, "0.2", None])
def test_noise_probability_must_be_a_probability(value):
    with pytest.raises(ArgumentError) as caught:
        Gates(noise_probability=value)
    assert str(caught.value).startswith(
        f"Gates.noise_probability: must be a probability between 0 and 1; got {value!r}."
    )


def test_gate_names_are_checked():
    with pytest.raises(ArgumentError, match=r"^Gates\.names: must be a tuple of gate names; got 'input_gate'\. Write "):
        Gates(names="input_gate")
    with pytest.raises(
        ArgumentError, match=r"^Gates\.names: must name gates of the cell; got 'cell_candidate'\. Known: "
    ):
        LSTM(3, 4, gates=Gates(names=("cell_candidate",)))
    with pytest.raises(ArgumentError, match=r"got 'master_forget'\. Known: input_gate, forget_gate, output_gate"):
        LSTM(3, 4, gates=Gates(names=("master_forget",)))
    assert Gates(names=["input_gate"]).names == ("input_gate",)


NAMES = "must be a tuple of gate names", "Write ('input_gate',)."
REFUSED = {
    "names": (*NAMES, [3, ("input_gate", 3), b"input_gate", [["input_gate"]], torch.tensor(3)]),
    "straight_through": ("must be True or False", "Give one of them.", ["yes", 1, None]),
    "temperature": ("must have an inverse that float32 can hold", "Give 1e-3 … 1e3.", [1e-320, 1e-40, 1e39, 1e46]),
}
REFUSED["evaluation_temperature"] = REFUSED["temperature"]


@pytest.mark.parametrize("field", REFUSED)
def test_wrong_values_of_a_field_are_refused(field):
    rule, advice, values = REFUSED[field]
    for value in values:
        with pytest.raises(ArgumentError) as caught:
            Gates(**{field: value})
        assert str(caught.value) == f"Gates.{field}: {rule}; got {value!r}. {advice}"
    assert Gates(temperature=1e-38).temperature == 1e-38 and Gates(temperature=1e37).temperature == 1e37


def test_a_temperature_too_low_for_half_precision_is_refused():
    layer = LSTM(3, 4, dtype=torch.float16, gates=Gates(temperature=1e-5))
    with pytest.raises(ArgumentError, match=r"must fit torch.float16; got 1e-05, whose inverse is more than 65504"):
        layer(torch.zeros(2, 1, 3, dtype=torch.float16))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_very_high_temperature_has_gradients(backend):
    layer = LSTM(3, 4, backend=backend, gates=Gates(temperature=1e37))
    layer(torch.randn(2, 2, 3))[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTM(3, 4, weight_dropout=0.5),
        lambda: G2LSTM(3, 4),
        lambda: ONLSTM(3, 4, gates=Gates(noise_probability=0.5)),
        lambda: ONLSTM(3, 4, gates=Gates(names=("master_forget",), noise_probability=0.5)),
    ],
)
def test_an_ensemble_by_vmap_draws_for_each_model(make, randomness):
    layers, x = [make() for _ in range(3)], torch.randn(5, 2, 3)
    layers[1].load_state_dict(layers[0].state_dict())
    parameters, buffers = torch.func.stack_module_state(layers)

    def one(own, held, x):
        return torch.func.functional_call(layers[0], (own, held), (x,))[0]

    found = torch.vmap(one, (0, 0, None), randomness=randomness)(parameters, buffers, x)
    assert found.shape == (3, 5, 2, 4) and found.isfinite().all()
    assert torch.equal(found[0], found[1]) == (randomness == "same") and not torch.equal(found[0], found[2])
