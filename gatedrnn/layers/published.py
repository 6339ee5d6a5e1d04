"""Weights that the authors of a cell published, made into a layer of ours."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from gatedrnn.core.checks import probability
from gatedrnn.core.errors import CheckpointError

Layer = TypeVar("Layer", bound=nn.Module)


def ordered_neurons(
    cls: Callable[..., Layer], state_dict: Mapping[str, Tensor], layer: int, dropconnect: float
) -> Layer:
    """What `ONLSTM.load_ordered_neurons` gives; `cls` makes the layer."""
    owner = "ONLSTM.load_ordered_neurons"
    probability(f"{owner}.dropconnect", dropconnect)
    names = {"weight_ih_l0": "ih.0.weight", "bias_ih_l0": "ih.0.bias"}
    names |= {"weight_hh_l0": "hh.weight", "bias_hh_l0": "hh.bias"}
    found = {part: _find(state_dict, f"cells.{layer}.{part}", owner) for part in names.values()}
    rows, hidden = found["hh.weight"].shape
    masters = rows - 4 * hidden
    if masters <= 0 or masters % 2 or hidden % (masters // 2):
        got = f"hh.weight {list(found['hh.weight'].shape)}"
        rule, advice = "rows must be 4·H + 2·D_m with D_m dividing H", "Is it an ON-LSTM's?"
        raise CheckpointError(owner, rule, got, advice)
    chunks = masters // 2
    weight = found["ih.0.weight"]
    module = cls(weight.shape[1], hidden, chunk_size=hidden // chunks, dtype=weight.dtype, device=weight.device)
    sizes = [chunks, chunks, hidden, hidden, hidden, hidden]

    def reorder(value: Tensor) -> Tensor:
        i_master, f_master, o, g, i, f = value.split(sizes)
        return torch.cat([i, f, g, o, i_master, f_master])

    with _fitting(owner):
        ours = {name: reorder(found[theirs]) for name, theirs in names.items()}
        ours["weight_hh_l0"] = ours["weight_hh_l0"] * (1.0 - dropconnect)
        module.load_state_dict(ours)
    return module


def g2(cls: Callable[..., Layer], state_dict: Mapping[str, Tensor]) -> Layer:
    """What `G2LSTM.load_g2` gives; `cls` makes the layer."""
    owner, advice = "G2LSTM.load_g2", "Is it a G²-LSTM's?"
    found = (re.search(r"(?:^|\.)cell_(\d+)\.weight_ih$", key) for key in state_dict)
    layers = sorted({int(match[1]) for match in found if match})
    if not layers or layers != list(range(len(layers))):
        raise CheckpointError(owner, "must hold cell_0.weight_ih and so on", f"layers {layers}", advice)
    first = _find(state_dict, "cell_0.weight_ih", owner)
    if first.shape[1] % 4:
        raise CheckpointError(owner, "weight_ih must have 4·H columns", list(first.shape), advice)
    bias = any(key.endswith("cell_0.bias") for key in state_dict)
    module = cls(first.shape[0], first.shape[1] // 4, len(layers), bias=bias, dtype=first.dtype, device=first.device)

    def reorder(value: Tensor) -> Tensor:
        f, i, o, g = value.chunk(4)
        return torch.cat([i, f, g, o])

    ours = {}
    with _fitting(owner):
        for layer in layers:
            for name in ("weight_ih", "weight_hh"):
                value = _find(state_dict, f"cell_{layer}.{name}", owner)
                ours[f"{name}_l{layer}"] = reorder(value.t())
            if bias:
                value = reorder(_find(state_dict, f"cell_{layer}.bias", owner))
                ours |= {f"bias_ih_l{layer}": value, f"bias_hh_l{layer}": torch.zeros_like(value)}
        module.load_state_dict(ours)
    return module


@contextmanager
def _fitting(owner: str) -> Iterator[None]:
    """torch's complaint about shapes as ours."""
    try:
        yield
    except CheckpointError:
        raise
    except RuntimeError as error:
        got = " ".join(str(error).split())
        raise CheckpointError(
            owner, "shapes must fit one another", got, "Check which layer and model they come from"
        ) from error


def _find(state_dict: Mapping[str, Tensor], ending: str, owner: str) -> Tensor:
    keys = [key for key in state_dict if key == ending or key.endswith(f".{ending}")]
    if len(keys) != 1:
        got = f"{len(keys)} of them" if keys else f"keys such as {', '.join(sorted(state_dict)[:3]) or 'none'}"
        raise CheckpointError(owner, f"must hold one key that ends in {ending!r}", got, "Check the layer's number")
    found, dimensions = state_dict[keys[0]], 1 if ending.endswith("bias") else 2
    if not isinstance(found, Tensor) or found.dim() != dimensions:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        rule = f"{ending} must be a tensor of {dimensions} dimension(s)"
        raise CheckpointError(owner, rule, got, "Check which model it comes from")
    return found
