"""Every cell's step against its equation written out in numpy, and the worked cases of ordered neurons."""

import numpy as np
import pytest
import torch

from gatedrnn import CELLS, ONLSTM, Gates, Recurrent
from gatedrnn.cells import rnn

B, D, H = 3, 4, 6


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def cumax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return np.cumsum(e / e.sum(-1, keepdims=True), -1)


def lstm(rows, h, c, extra):
    i, f, g, o = rows(0, H), rows(H, 2 * H), rows(2 * H, 3 * H), rows(3 * H, 4 * H)
    c = sigmoid(f()) * c + sigmoid(i()) * np.tanh(g())
    return sigmoid(o()) * np.tanh(c), c


def lstm_capped(rows, h, c, extra):
    i, f, g, o = (rows(k * H, (k + 1) * H)() for k in range(4))
    c = sigmoid(f) * c + np.minimum(sigmoid(i), 1 - sigmoid(f)) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def peephole(rows, h, c, extra):
    P = extra["weight_ch"]
    peep = (lambda c, k: c * P[k * H : (k + 1) * H]) if P.ndim == 1 else (lambda c, k: c @ P[k * H : (k + 1) * H].T)
    i, f, g, o = (rows(k * H, (k + 1) * H)() for k in range(4))
    new = sigmoid(f + peep(c, 1)) * c + sigmoid(i + peep(c, 0)) * np.tanh(g)
    return sigmoid(o + peep(new, 2)) * np.tanh(new), new


def coupled(rows, h, c, extra):
    f, g, o = (rows(k * H, (k + 1) * H)() for k in range(3))
    c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_after(rows, h, c, extra):
    r, z = sigmoid(rows(0, H)()), sigmoid(rows(H, 2 * H)())
    n = np.tanh(rows(2 * H, 3 * H).x() + r * rows(2 * H, 3 * H).h(h))
    return ((1 - z) * n + z * h,)


def gru_before(rows, h, c, extra):
    r, z = sigmoid(rows(0, H)()), sigmoid(rows(H, 2 * H)())
    n = np.tanh(rows(2 * H, 3 * H).x() + rows(2 * H, 3 * H).h(r * h))
    return ((1 - z) * h + z * n,)


def onlstm(chunk, free):
    K = H // chunk
    R = K + free

    def equation(rows, h, c, extra):
        i, f, g, o = (rows(k * H, (k + 1) * H)() for k in range(4))
        master_i = 1 - cumax(rows(4 * H, 4 * H + R)())[:, :K]
        master_f = cumax(rows(4 * H + R, 4 * H + 2 * R)())[:, :K]
        master_i, master_f = np.repeat(master_i, chunk, 1), np.repeat(master_f, chunk, 1)
        f_hat = master_f * (sigmoid(f) * master_i + 1 - master_i)
        i_hat = master_i * (sigmoid(i) * master_f + 1 - master_f)
        c = f_hat * c + i_hat * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    return equation


def mgu(rows, h, c, extra):
    f = sigmoid(rows(0, H)())
    n = np.tanh(rows(H, 2 * H).x() + rows(H, 2 * H).h(f * h))
    return ((1 - f) * h + f * n,)


def norm(a, name, extra):
    a = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
    return a * extra[f"gain_{name}"] + extra[f"shift_{name}"]


def layernorm(rows, h, c, extra):
    whole = rows(0, 4 * H)
    i, f, g, o = np.split(norm(whole.x(), "ih", extra) + norm(whole.h(h), "hh", extra), 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(norm(c, "ch", extra)), c


def slstm(rows, h, c, extra):
    i, f, z, o = (rows(k * H, (k + 1) * H)() for k in range(4))
    n, m = np.zeros_like(c), np.full_like(c, -0.3)  # an empty memory: m' is of no account
    c = np.exp(i) * np.tanh(z) + sigmoid(f) * np.exp(m) * c
    n = np.exp(i) + sigmoid(f) * np.exp(m) * n
    return sigmoid(o) * c / n, c / np.exp(i), n / np.exp(i), i


EQUATIONS = [
    ("mgu", {}, 2 * H, mgu),
    ("layernorm", {}, 4 * H, layernorm),
    ("slstm", {}, 4 * H, slstm),
    ("rnn", {}, H, lambda rows, h, c, extra: (np.tanh(rows(0, H)()),)),
    ("rnn", {"nonlinearity": "relu"}, H, lambda rows, h, c, extra: (np.maximum(rows(0, H)(), 0),)),
    ("rnn", {"nonlinearity": "sigmoid"}, H, lambda rows, h, c, extra: (sigmoid(rows(0, H)()),)),
    ("lstm", {}, 4 * H, lstm),
    ("lstm", {"input_cap": True}, 4 * H, lstm_capped),
    ("g2lstm", {}, 4 * H, lstm),
    ("g2lstm", {"input_cap": True}, 4 * H, lstm_capped),
    ("peephole", {}, 4 * H, peephole),
    ("peephole", {"peephole": "full"}, 4 * H, peephole),
    ("coupled", {}, 3 * H, coupled),
    ("gru", {}, 3 * H, gru_after),
    ("gru", {"reset_after": False}, 3 * H, gru_before),
    ("onlstm", {}, 6 * H, onlstm(1, False)),
    ("onlstm", {"chunk_size": 3}, 4 * H + 4, onlstm(3, False)),
    ("onlstm", {"split_points": "free"}, 6 * H + 2, onlstm(1, True)),
    ("onlstm", {"chunk_size": 3, "split_points": "free"}, 4 * H + 6, onlstm(3, True)),
]


class Rows:
    """Logits W x + b + U h + b of a block of rows, or its two halves."""

    def __init__(self, weights, x, h, start, stop):
        self.weights, self.values, self.rows = weights, (x, h), slice(start, stop)

    def x(self):
        return self.values[0] @ self.weights["weight_ih"][self.rows].T + self.weights["bias_ih"][self.rows]

    def h(self, h):
        return h @ self.weights["weight_hh"][self.rows].T + self.weights["bias_hh"][self.rows]

    def __call__(self):
        return self.x() + self.h(self.values[1])


def test_equations_cover_every_registered_cell():
    assert {name for name, *_ in EQUATIONS} == set(CELLS)


@pytest.mark.parametrize(
    ("name", "options", "size", "equation"),
    EQUATIONS,
    ids=[f"{n}-{'-'.join(map(str, o.values()))}" for n, o, *_ in EQUATIONS],
)
def test_step_is_its_equation(name, options, size, equation):
    from gatedrnn import Recurrent

    draw = np.random.default_rng(2)
    layer = Recurrent(name, D, H, dtype=torch.float64, **options).eval()
    shapes = {key: tuple(value.shape) for key, value in layer.state_dict().items()}
    assert shapes["weight_ih_l0"] == (size, D) and shapes["weight_hh_l0"] == (size, H)
    weights = {key.removesuffix("_l0"): draw.normal(size=shape) for key, shape in shapes.items()}
    layer.load_state_dict({f"{key}_l0": torch.from_numpy(value) for key, value in weights.items()})
    x, h, c = draw.normal(size=(B, D)), draw.normal(size=(B, H)), draw.normal(size=(B, H))
    expected = equation(lambda start, stop: Rows(weights, x, h, start, stop), h, c, weights)
    given = {"h": h, "c": c, "n": np.zeros_like(c), "m": np.full_like(c, -0.3)}
    states = [torch.from_numpy(given[name])[None] for name in layer.spec.states]
    hx = tuple(states) if len(states) > 1 else states[0]
    output, finals = layer(torch.from_numpy(x)[None], hx)
    finals = finals if isinstance(finals, tuple) else (finals,)
    assert len(finals) == len(expected)
    np.testing.assert_allclose(output[0].detach(), expected[0], rtol=1e-13, atol=1e-13)
    for final, value in zip(finals, expected, strict=True):
        np.testing.assert_allclose(final[0].detach(), value, rtol=1e-13, atol=1e-13)


def with_splits(d_f, d_i, hidden=8, straight_through=False, **options):
    """An ONLSTM whose master gates split at d_f and d_i whatever it reads; the rest of its weights are random."""
    torch.manual_seed(0)
    gates = Gates(straight_through=straight_through, names=("master_input", "master_forget"))
    layer = ONLSTM(3, hidden, dtype=torch.float64, gates=gates, **options)
    rows = layer.spec.gate("master_input").rows
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter[4 * hidden :] = 0
        height = 0.5 if straight_through else 1e4
        layer.bias_ih_l0[4 * hidden + d_i] = height
        layer.bias_ih_l0[4 * hidden + rows + d_f] = height
    return layer


@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize(
    ("d_f", "d_i", "fates"), [(3, 5, "NNNCCKKK"), (5, 3, "NNN00KKK"), (0, 7, "CCCCCCCK"), (4, 4, "NNNNKKKK")]
)
def test_binary_master_gates_decide_each_unit(d_f, d_i, fates, straight_through):
    layer = with_splits(d_f, d_i, straight_through=straight_through)
    c0 = torch.randn(1, 2, 8, dtype=torch.float64)
    given = (torch.randn_like(c0), c0)
    _, (_, c), (gates,) = layer(torch.randn(1, 2, 3, dtype=torch.float64), given, return_gates=True)
    assert gates["master_forget"][0, 0].tolist() == [0.0] * d_f + [1.0] * (8 - d_f)
    assert gates["master_input"][0, 0].tolist() == [1.0] * d_i + [0.0] * (8 - d_i)
    i, f, g = (gates[name][0] for name in ("input_gate", "forget_gate", "cell_candidate"))
    values = {"N": g, "C": f * c0[0] + i * g, "0": torch.zeros_like(g), "K": c0[0]}
    expected = torch.stack([values[fate][:, unit] for unit, fate in enumerate(fates)], -1)
    torch.testing.assert_close(c[0], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("chunk_size", [1, 2])
def test_the_last_chunk_never_leaves_its_initial_state_unless_split_points_are_free(chunk_size):
    torch.manual_seed(0)
    x, c0 = torch.randn(9, 2, 3, dtype=torch.float64), torch.randn(1, 2, 8, dtype=torch.float64)
    changed = {}
    for split_points in ("paper", "free"):
        layer = ONLSTM(3, 8, chunk_size=chunk_size, split_points=split_points, dtype=torch.float64)
        _, (_, c) = layer(x, (torch.zeros_like(c0), c0))
        changed[split_points] = (c - c0).abs()[0].amin(0)
    assert (changed["paper"][-chunk_size:] < 1e-14).all() and (changed["paper"][:-chunk_size] > 1e-6).all()
    assert (changed["free"] > 1e-6).all()


def test_a_free_split_point_can_lie_beyond_every_unit():
    layer = with_splits(8, 8, split_points="free")
    c0 = torch.randn(1, 1, 8, dtype=torch.float64)
    _, (_, c), (gates,) = layer(torch.randn(1, 1, 3, dtype=torch.float64), (c0, c0), return_gates=True)
    assert gates["master_forget"].sum() == 0 and gates["master_input"].sum() == 8
    torch.testing.assert_close(c, gates["cell_candidate"], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("split_points", "rows"), [("paper", 4), ("free", 5)])
def test_rows_and_widths_of_master_gates(split_points, rows):
    layer = ONLSTM(3, 12, chunk_size=3, split_points=split_points)
    assert layer.weight_ih_l0.shape == (4 * 12 + 2 * rows, 3)
    trace = layer(torch.randn(2, 1, 3), return_gates=True)[2][0]
    assert trace["master_forget"].shape == trace["master_input"].shape == (2, 1, 4)


def test_the_names_of_an_rnn_s_squash_are_a_tuple():
    assert rnn.NONLINEARITIES == ("tanh", "relu", "sigmoid")
    assert [rnn.make_spec(2, nonlinearity=each).gates[0].squash for each in rnn.NONLINEARITIES] == [*rnn.NONLINEARITIES]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_empty_slstm_takes_any_input(backend):
    """The forget gate of an empty state has nothing to keep; before, it overflowed and gave NaN."""
    layer = Recurrent("slstm", 1, 3, backend=backend)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([-200.0, 200.0, 1.0, 1.0]).repeat_interleave(3)[:, None])
        layer.bias_ih_l0.zero_(), layer.bias_hh_l0.zero_(), layer.weight_hh_l0.zero_()
    x = torch.ones(2, 1, 1, requires_grad=True)
    output, _, gates = layer(x, return_gates=True)
    output.sum().backward()
    expected = torch.sigmoid(torch.tensor(1.0)) * torch.tanh(torch.tensor(1.0))
    torch.testing.assert_close(output, expected.expand(2, 1, 3))
    assert x.grad.isfinite().all() and gates[0]["forget_gate"].isfinite().all()
