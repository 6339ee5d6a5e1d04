"""What an operator may pass on to a kernel, which checks nothing."""

import math

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError

_DISPATCH = "__torch_dispatch__"


def real(owner: str, tensor: Tensor) -> torch.dtype:
    """The tensor's type, which must be one of the kernels'."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(owner, "must be float32 or float64", tensor.dtype, "Convert it")
    return tensor.dtype


def together(owner: str, *tensors: Tensor) -> None:
    """Refuse tensors of which some are on meta: torch then takes the shapes' formula, whose memory nobody fills."""
    if len({tensor.device for tensor in tensors}) > 1:
        got = ", ".join(str(tensor.device) for tensor in tensors)
        raise ArgumentError(owner, "tensors must be on one device", got, "Move them to one")


def trusted(owner: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """`tensor`, contiguous, if it is what a kernel takes it for.

    Raises: ArgumentError: another device, type or shape, or a tensor whose numbers are not at one address (subclass, sparse).
    """
    own = getattr(type(tensor), _DISPATCH) is getattr(Tensor, _DISPATCH)  # else its numbers are not at its address
    plain = own and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.dtype != dtype or tensor.shape != shape:
        rule = f"must be a plain tensor of {dtype} {list(shape)} on the CPU"
        got = f"{type(tensor).__name__} of {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ArgumentError(owner, rule, got, "Convert it")
    return tensor.contiguous()


def drawable(owner: str, blocks: list[int], chance: list[float], columns: int) -> None:
    """Refuse noise that a kernel cannot draw.

    Args: blocks: first and last + 1 column of each block; chance: probability and scale.
    Raises: ArgumentError: blocks are no ascending pairs of columns, or a number is out of range.
    """
    edges = [0, *blocks, columns]
    if len(blocks) % 2 or edges != sorted(edges):
        rule, got = "blocks must be pairs of ascending columns of the rows", f"{blocks} of {columns} columns"
        raise ArgumentError(f"{owner}.blocks", rule, got, "Give first and last + 1")
    if len(chance) != 2 or not (0.0 < chance[0] <= 1.0 and math.isfinite(chance[1])):
        rule = "must be a probability in (0, 1] and a finite scale"
        raise ArgumentError(f"{owner}.chance", rule, chance, "Draw nothing where the probability is 0")
