"""The authors' figures for ON-LSTM: every value and every gradient to 1e-10 in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gatedrnn import ONLSTM, syntactic_distance

GATES = ("input", "forget", "cell", "output", "master_input", "master_forget")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def close(ours, golden):
    torch.testing.assert_close(ours.detach(), golden, rtol=0, atol=1e-10)


def stack(z, chunk_size):
    """One single-layer ONLSTM a layer of the golden model, with its weights."""
    layers = []
    while f"h0_l{len(layers)}" in z:
        index = len(layers)
        state = {f"{p}_l0": torch.cat([z[f"{p}_l{index}.{gate}"] for gate in GATES]) for p in PARAMETERS}
        width, hidden = state["weight_ih_l0"].shape[1], state["weight_hh_l0"].shape[1]
        layer = ONLSTM(width, hidden, chunk_size=chunk_size, dtype=torch.float64)
        layer.load_state_dict(state)
        layers.append(layer)
    return layers


@pytest.fixture(scope="module", params=[("onlstm_small", 3, 3), ("onlstm_chunk1", 1, 2)], ids=lambda p: p[0])
def run(request, shared_file):
    name, chunk_size, depth = request.param
    with np.load(shared_file(f"golden/{name}.npz")) as file:
        z = {key: torch.as_tensor(file[key]) for key in file.files}
    layers = stack(z, chunk_size)
    assert len(layers) == depth
    leaves = {"x": z["x"].clone().requires_grad_()}
    hidden, finals, forget, inputs = leaves["x"], [], [], []
    for index, layer in enumerate(layers):
        for state in "hc":
            leaves[f"{state}0_l{index}"] = z[f"{state}0_l{index}"].clone().requires_grad_()
        given = tuple(leaves[f"{state}0_l{index}"][None] for state in "hc")
        hidden, final, (trace,) = layer(hidden, given, return_gates=True)
        finals.append(final)
        forget.append(syntactic_distance(trace["master_forget"]))
        inputs.append(trace["master_input"].mean(-1))
    ours = SimpleNamespace(output=hidden, forget=torch.stack(forget), input=torch.stack(inputs), finals=finals)
    ours.loss = (hidden * z["probe_output"]).sum() + (ours.forget * z["probe_distance_forget"]).sum()
    ours.loss = ours.loss + (ours.input * z["probe_distance_input"]).sum()
    ours.loss = ours.loss + sum((c[0] * z[f"probe_cn_l{index}"]).sum() for index, (_, c) in enumerate(finals))
    ours.loss.backward()
    ours.gradients = {f"grad_{name}": leaf.grad for name, leaf in leaves.items()}
    for index, layer in enumerate(layers):
        sizes = [z[f"bias_ih_l{index}.{gate}"].shape[0] for gate in GATES]
        for parameter in PARAMETERS:
            parts = getattr(layer, f"{parameter}_l0").grad.split(sizes)
            ours.gradients |= {
                f"grad_{parameter}_l{index}.{gate}": part for gate, part in zip(GATES, parts, strict=True)
            }
    return z, ours


def test_outputs_and_final_states(run):
    z, ours = run
    close(ours.output, z["output"])
    for index, (h, c) in enumerate(ours.finals):
        close(h[0], z[f"hn_l{index}"])
        close(c[0], z[f"cn_l{index}"])


def test_distances(run):
    z, ours = run
    close(ours.forget, z["distance_forget"])
    close(ours.input, z["distance_input"])


def test_loss(run):
    z, ours = run
    close(ours.loss, z["loss"])


def test_every_gradient(run):
    z, ours = run
    golden = {name for name in z if name.startswith("grad_")}
    assert golden == set(ours.gradients)
    for name in sorted(golden):
        torch.testing.assert_close(
            ours.gradients[name], z[name], rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )
