"""Reading the authors' published weights: ON-LSTM from the golden arrays, G²-LSTM against its equations in numpy."""

import numpy as np
import pytest
import torch

from gatedrnn import G2LSTM, ONLSTM, CheckpointError

THEIRS = ("master_input", "master_forget", "output", "cell", "input", "forget")


def ordered_neurons_state(z, prefix):
    state, index = {}, 0
    while f"h0_l{index}" in z:
        for ours, theirs in (("weight_ih", "ih.0.weight"), ("bias_ih", "ih.0.bias"), ("weight_hh", "hh.weight")):
            state[f"{prefix}cells.{index}.{theirs}"] = torch.cat([z[f"{ours}_l{index}.{gate}"] for gate in THEIRS])
        state[f"{prefix}cells.{index}.hh.bias"] = torch.cat([z[f"bias_hh_l{index}.{gate}"] for gate in THEIRS])
        index += 1
    return state, index


@pytest.fixture(scope="module", params=[("onlstm_small", 3), ("onlstm_chunk1", 1)], ids=lambda p: p[0])
def golden(request, shared_file):
    name, chunk_size = request.param
    with np.load(shared_file(f"golden/{name}.npz")) as file:
        return {key: torch.as_tensor(file[key]) for key in file.files}, chunk_size


@pytest.mark.parametrize("prefix", ["", "rnn.", "module.rnn."])
def test_ordered_neurons_layers_give_the_golden_output(golden, prefix):
    z, chunk_size = golden
    state, depth = ordered_neurons_state(z, prefix)
    hidden = z["x"]
    for index in range(depth):
        layer = ONLSTM.load_ordered_neurons(state, index)
        assert layer.options["chunk_size"] == chunk_size
        given = (z[f"h0_l{index}"][None], z[f"c0_l{index}"][None])
        hidden, (_, c) = layer(hidden, given)
        torch.testing.assert_close(c[0].detach(), z[f"cn_l{index}"], rtol=0, atol=1e-10)
    torch.testing.assert_close(hidden.detach(), z["output"], rtol=0, atol=1e-10)


def test_dropconnect_scales_the_recurrent_weights_only(golden):
    z, _ = golden
    state, _ = ordered_neurons_state(z, "")
    plain, scaled = (ONLSTM.load_ordered_neurons(state, 1, dropconnect=p).state_dict() for p in (0.0, 0.45))
    torch.testing.assert_close(scaled.pop("weight_hh_l0"), 0.55 * plain.pop("weight_hh_l0"), rtol=0, atol=1e-15)
    for name, value in plain.items():
        assert torch.equal(scaled[name], value), name


def test_ordered_neurons_refuses_a_missing_layer_and_wrong_shapes():
    state = {
        "cells.0.ih.0.weight": torch.zeros(21, 3),
        "cells.0.ih.0.bias": torch.zeros(21),
        "cells.0.hh.weight": torch.zeros(21, 4),
        "cells.0.hh.bias": torch.zeros(21),
    }
    with pytest.raises(CheckpointError, match=r"ONLSTM\.load_ordered_neurons: .*'cells\.3\.ih\.0\.weight'; got "):
        ONLSTM.load_ordered_neurons(state, 3)
    with pytest.raises(CheckpointError, match=r"ONLSTM\.load_ordered_neurons: .*; got hh\.weight \[21, 4\]"):
        ONLSTM.load_ordered_neurons(state, 0)


def g2_state(prefix, depth, width, hidden, bias=True):
    draw = np.random.default_rng(5)
    state = {}
    for layer in range(depth):
        name = f"{prefix}cell_{layer}."
        state[f"{name}weight_ih"] = torch.from_numpy(draw.normal(size=(width if layer == 0 else hidden, 4 * hidden)))
        state[f"{name}weight_hh"] = torch.from_numpy(draw.normal(size=(hidden, 4 * hidden)))
        if bias:
            state[f"{name}bias"] = torch.from_numpy(draw.normal(size=4 * hidden))
    return state


def g2_by_hand(state, prefix, depth, x_TBD):
    """Li et al. in evaluation: f, i, o, g = split(h' U + x W + b), plain LSTM; in numpy."""
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731 - one line of mathematics
    outputs = x_TBD
    for layer in range(depth):
        weights = {k: v.numpy() for k, v in state.items()}
        W, U = (weights[f"{prefix}cell_{layer}.weight_{part}"] for part in ("ih", "hh"))
        b = weights.get(f"{prefix}cell_{layer}.bias", 0.0)
        h = c = np.zeros((x_TBD.shape[1], U.shape[0]))
        steps = []
        for x in outputs:
            f, i, o, g = np.split(x @ W + h @ U + b, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            steps.append(h)
        outputs = np.stack(steps)
    return outputs, c


@pytest.mark.parametrize("prefix", ["", "rnn.", "decoder.lstm."])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_g2_weights_give_the_equations_output(prefix, bias, depth):
    state = g2_state(prefix, depth, 3, 4, bias)
    layer = G2LSTM.load_g2(state).eval()
    x = np.random.default_rng(1).normal(size=(5, 2, 3))
    output, c = g2_by_hand(state, prefix, depth, x)
    ours, (h_n, c_n) = layer(torch.from_numpy(x))
    np.testing.assert_allclose(ours.detach(), output, rtol=0, atol=1e-12)
    np.testing.assert_allclose(h_n[-1].detach(), output[-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(c_n[-1].detach(), c, rtol=0, atol=1e-12)
    assert layer.bias is bias and layer.gates.temperature == 0.9 and layer.gates.noise_probability == 0.2


def test_g2_reads_a_prefix_that_itself_says_cell():
    layer = G2LSTM.load_g2(g2_state("encoder_cell_stack.", 2, 3, 4))
    assert layer.num_layers == 2


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"G2LSTM\.load_g2: must hold cell_0\.weight_ih and so on; got layers \[\]"),
        ({"cell_1.weight_ih": torch.zeros(3, 8)}, r"must hold cell_0\.weight_ih and so on; got layers \[1\]"),
        ({"cell_0.weight_ih": torch.zeros(3, 7)}, r"weight_ih must have 4·H columns; got \[3, 7\]"),
        ({"cell_0.weight_ih": torch.zeros(3, 8)}, r"must hold one key that ends in 'cell_0\.weight_hh'; got "),
    ],
)
def test_g2_refuses_what_is_no_g2(state, message):
    with pytest.raises(CheckpointError, match=message):
        G2LSTM.load_g2(state)


def test_weights_that_do_not_fit_are_refused():
    ordered = {"cells.0.ih.0.weight": torch.zeros(7, 3), "cells.0.ih.0.bias": torch.zeros(20)}
    ordered |= {"cells.0.hh.weight": torch.zeros(20, 4), "cells.0.hh.bias": torch.zeros(20)}
    with pytest.raises(CheckpointError, match=r"load_ordered_neurons: shapes must fit one another; got .*7.*\. Check"):
        ONLSTM.load_ordered_neurons(ordered, 0)
    g2 = {"cell_0.weight_ih": torch.zeros(3, 16), "cell_0.weight_hh": torch.zeros(5, 16)}
    with pytest.raises(CheckpointError, match=r"load_g2: shapes must fit one another; got .*5.*\. Check"):
        G2LSTM.load_g2(g2)
