"""Reading what torch.nn.LSTM accepts (padded, unbatched, packed, batch first) into one [T, B, D] form, and back.

Dimensions: T time, B batch, D input, L layers × directions, H hidden, N units of a gate.
"""

import reprlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from gatedrnn.cells import State
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import functorch_active
from gatedrnn.gates.gates import names_of


@dataclass(slots=True, eq=False)
class Batch:
    """An input in the driver's form, and how to give results the input's own form again.

    Args:
        x_TBD: input [T, B, D]; of a PackedSequence in its sorted order.
        lengths_B: int64 [B] or None.
        layout: "time", "batch", "single" or "packed".
        packed: the PackedSequence, if it was one.
        batch_first: layout of the trace.
    """

    x_TBD: Tensor
    lengths_B: Tensor | None
    layout: str
    packed: PackedSequence | None = None
    batch_first: bool = False

    @property
    def size(self) -> int:
        """B."""
        return self.x_TBD.shape[1]

    def arrange(self, noise_TBR: Tensor | None) -> Tensor | None:
        """Noise in the batch's own order, in the driver's."""
        if noise_TBR is None or self.packed is None or self.packed.sorted_indices is None:
            return noise_TBR
        return noise_TBR.index_select(1, self.packed.sorted_indices)

    def restore(self, output_TBH: Tensor) -> Any:
        """Output in the input's layout."""
        if self.layout == "packed":
            assert self.packed is not None and self.lengths_B is not None
            data = pack_padded_sequence(output_TBH, self.lengths_B.cpu()).data
            return PackedSequence(
                data, self.packed.batch_sizes, self.packed.sorted_indices, self.packed.unsorted_indices
            )
        if self.layout == "single":
            return output_TBH.squeeze(1)
        return output_TBH.transpose(0, 1) if self.layout == "batch" else output_TBH

    def restore_state(self, state_LBH: Tensor) -> Tensor:
        """A stacked state in the batch's own order, without B if unbatched."""
        if self.layout == "single":
            return state_LBH.squeeze(1)
        if self.packed is not None and self.packed.unsorted_indices is not None:
            return state_LBH.index_select(1, self.packed.unsorted_indices)
        return state_LBH

    def restore_gate(self, gate_TBN: Tensor) -> Tensor:
        """One gate of the trace, padded, in the batch's own order."""
        gate_TBN = self.restore_state(gate_TBN)
        return gate_TBN.transpose(0, 1) if self.batch_first and self.layout != "single" else gate_TBN


def read_input(owner: str, input: Any, lengths: Any, input_size: int, batch_first: bool, dtype: torch.dtype) -> Batch:
    """Check `input` and `lengths` and bring them into the driver's form.

    Raises: ArgumentError: wrong type, rank, width or dtype, no step, or lengths that do not fit.
    """
    place = f"{owner}.input"
    if isinstance(input, PackedSequence):
        if lengths is not None:
            raise ArgumentError(
                f"{owner}.lengths", "must be None for a PackedSequence", "lengths", "Drop it: the sequence has its own"
            )
        _check_layout(place, input.data)
        if input.data.dim() != 2:
            rule, got = "must hold data of 2 dimensions [tokens, D]", f"shape {list(input.data.shape)}"
            raise ArgumentError(place, rule, got, "Pack a padded input [T, B, D]")
        if not torch.compiler.is_compiling() and (tokens := int(input.batch_sizes.sum())) != len(input.data):
            got = f"{len(input.data)} tokens, and batch_sizes of {tokens}"
            raise ArgumentError(place, "must hold as many tokens as its batch_sizes say", got, "Pack it again")
        if not torch.compiler.is_compiling() and bool((input.batch_sizes.diff() > 0).any()):
            got = str(input.batch_sizes.tolist())
            raise ArgumentError(place, "must have batch_sizes that never rise", got, "Pack it again")
        x_TBD, own = pad_packed_sequence(PackedSequence(input.data, input.batch_sizes))  # which stays sorted
        _check_tensor(place, x_TBD, input_size, dtype)
        return Batch(x_TBD, own.to(x_TBD.device), "packed", input, batch_first)
    if not isinstance(input, Tensor):
        raise ArgumentError(place, "must be a tensor or a PackedSequence", type(input).__name__, "Convert it")
    _check_layout(place, input)
    if input.dim() not in (2, 3):
        raise ArgumentError(place, "must be 2-D [T, D] or 3-D", f"shape {list(input.shape)}", "Add or drop dimensions")
    _check_tensor(place, input, input_size, dtype)
    if input.dim() == 2:
        if lengths is not None:
            raise ArgumentError(
                f"{owner}.lengths", "must be None for an unbatched 2-D input", "lengths", "Shorten the input instead"
            )
        batch = Batch(input.unsqueeze(1), None, "single")
    elif batch_first:
        batch = Batch(input.transpose(0, 1), None, "batch", batch_first=True)
    else:
        batch = Batch(input, None, "time")
    if batch.x_TBD.shape[0] == 0:
        got = f"shape {list(input.shape)}"
        raise ArgumentError(place, "must have at least one time step", got, "Drop empty sequences")
    if lengths is None:
        return batch
    return replace(batch, lengths_B=_read_lengths(owner, lengths, batch.x_TBD))


def read_state(
    owner: str, hx: Any, names: tuple[str, ...], shapes: list[tuple[int, int, int]], batch: Batch
) -> list[State]:
    """Initial states by layer and direction, each a tuple of [B, H], in the driver's batch order; `shapes` by state.

    Raises: ArgumentError: wrong number of states, shape or dtype.
    """
    like, autocast = batch.x_TBD, _autocast(batch.x_TBD)
    if hx is None:
        options: Any = {"device": like.device, "dtype": torch.float32 if autocast else like.dtype}
        zeros = {width: torch.zeros(size, width, **options) for _, size, width in shapes}
        return [tuple(zeros[width] for _, _, width in shapes)] * shapes[0][0]
    states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if len(states) != len(names) or (len(names) > 1 and isinstance(hx, Tensor)):
        raise _no_states(owner, names, f"{len(states)} state(s)")
    types = (torch.float32, torch.get_autocast_dtype(like.device.type)) if autocast else (like.dtype,)
    read = []
    for name, state, shape in zip(names, states, shapes, strict=True):
        wanted = (shape[0], shape[2]) if batch.layout == "single" else shape
        if not isinstance(state, Tensor):
            raise _no_states(owner, names, type(state).__name__)
        _check_layout(f"{owner}.hx", state)
        if state.shape != wanted:
            got, advice = list(state.shape), "Leave hx out for zeros"
            raise ArgumentError(f"{owner}.hx", f"{name}_0 must have shape {list(wanted)}", got, advice)
        if state.device != like.device:
            rule = f"{name}_0 must be on the input's device {like.device}"
            raise ArgumentError(f"{owner}.hx", rule, state.device, f"Write {name}_0.to({str(like.device)!r})")
        if state.dtype not in types:
            rule = f"{name}_0 must be {' or '.join(map(str, types))}"
            raise ArgumentError(f"{owner}.hx", rule, state.dtype, "Convert it")
        state = state.unsqueeze(1) if batch.layout == "single" else state
        if batch.packed is not None and batch.packed.sorted_indices is not None:
            state = state.index_select(1, batch.packed.sorted_indices)
        read.append((state[0],) if shape[0] == 1 else state.unbind(0))
    return list(zip(*read, strict=True))


def _no_states(owner: str, names: tuple[str, ...], got: str) -> ArgumentError:
    expected = "a tensor h_0" if len(names) == 1 else f"a tuple ({', '.join(f'{n}_0' for n in names)})"
    return ArgumentError(f"{owner}.hx", f"must be {expected}", got, "Pass on what an earlier call returned")


def read_names(owner: str, return_gates: Any) -> bool | tuple[str, ...]:
    """`return_gates` as True, False or names, of which it is not checked that the cell has such gates.

    Raises: ArgumentError: it is neither a bool nor None nor a collection of strings, of one at least.
    """
    if return_gates is None or isinstance(return_gates, bool):
        return bool(return_gates)
    names = names_of(return_gates)
    if not names:
        rule, advice = "must be True, False or a tuple of gate names", "Write ('input_gate',), or True for all gates"
        raise ArgumentError(f"{owner}.return_gates", rule, shown(return_gates), advice)
    return names


def read_noise(owner: str, noise: Any, places: int, shape: tuple[int, ...], device: torch.device) -> list[Any]:
    """`noise` as a list by layer and direction (`places` counts both) of tensors [T, B, R] of `shape`, or None.

    Raises: ArgumentError: no list, another number of entries, or an entry that is no such tensor on `device`.
    """
    owner, advice = f"{owner}.noise", "Draw it with sample_noise(steps, batch)"
    try:
        entries = list(noise)
    except TypeError as error:
        rule = "must be a list of a tensor or None for each layer and direction"
        raise ArgumentError(owner, rule, shown(noise), advice) from error
    if len(entries) != places:
        raise ArgumentError(
            owner, f"must have {places} entries", len(entries), "Give one entry per layer and direction"
        )
    for entry in entries:
        if entry is None:
            continue
        if not isinstance(entry, Tensor):
            raise ArgumentError(owner, "must hold tensors or None", type(entry).__name__, advice)
        _check_layout(owner, entry)
        if entry.shape != shape or entry.device != device:
            got = f"{list(entry.shape)} on {entry.device}"
            raise ArgumentError(owner, f"must have shape {list(shape)} on {device}", got, advice)
    return entries


def shown(value: Any) -> str:
    """`value` on one short line."""
    return " ".join(reprlib.repr(value).split())


def _check_layout(owner: str, tensor: Tensor) -> None:
    if tensor.is_nested:
        advice = "Pad it with torch.nested.to_padded_tensor(tensor, 0.0); for an input, also pass lengths"
        raise ArgumentError(owner, "must be a strided tensor", "a nested tensor", advice)
    if tensor.layout != torch.strided:
        raise ArgumentError(owner, "must be a strided tensor", tensor.layout, "Call tensor.to_dense()")


def _check_tensor(owner: str, input: Tensor, input_size: int, dtype: torch.dtype) -> None:
    if input.shape[-1] != input_size:
        raise ArgumentError(
            owner,
            f"last dimension must be input_size={input_size}",
            f"shape {list(input.shape)}",
            f"Build the layer with input_size={input.shape[-1]}, or check the order of dimensions",
        )
    if input.dtype != dtype and not (_autocast(input) and input.dtype.is_floating_point and dtype != torch.float64):
        advice = f"Convert one: input.to({dtype}) or layer.to({input.dtype})"
        raise ArgumentError(owner, f"must have the weights' type {dtype}", input.dtype, advice)


def _autocast(like: Tensor) -> bool:
    if like.dtype == torch.float64:  # which autocast leaves as it is
        return False
    if like.is_cpu:
        return torch.is_autocast_enabled("cpu")
    kind = like.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def _read_lengths(owner: str, lengths: Any, x_TBD: Tensor) -> Tensor:
    given_B = lengths if isinstance(lengths, Tensor) else _as_tensor(owner, lengths, x_TBD)
    _check_layout(f"{owner}.lengths", given_B)
    if given_B.dtype not in _INTEGERS or list(given_B.shape) != [x_TBD.shape[1]]:
        got = f"{given_B.dtype} of shape {list(given_B.shape)}"
        raise ArgumentError(f"{owner}.lengths", f"must be {x_TBD.shape[1]} integers", got, "Give one length per row")
    lengths_B = given_B if given_B.dtype == torch.int64 else given_B.to(torch.int64)  # others lack min
    if not torch.compiler.is_compiling() and lengths_B.numel() and not _is_batched(lengths_B):
        low, high = int(lengths_B.min()), int(lengths_B.max())
        if low < 1 or high > len(x_TBD):
            values = given_B.tolist()  # a uint64 beyond int64 has become negative
            got = f"{min(values)}…{max(values)}"
            raise ArgumentError(
                f"{owner}.lengths", f"must lie in 1…{len(x_TBD)}", got, "Drop empty rows, or pad the input"
            )
    # the caller may change a tensor of its own before the backward pass
    own_B = lengths_B.clone() if lengths_B is lengths else lengths_B
    return own_B.to(x_TBD.device).contiguous()


def _is_batched(lengths_B: Tensor) -> bool:
    """Whether vmap runs over them: no number can then be read."""
    if not functorch_active():
        return False
    try:
        int(lengths_B[0])
    except RuntimeError:
        return True
    return False


def _as_tensor(owner: str, lengths: Any, x_TBD: Tensor) -> Tensor:
    """Lengths that are no tensor as one on the CPU, where checking them waits for no GPU."""
    try:
        if isinstance(lengths, np.ndarray):
            lengths = lengths.copy()  # which also undoes the negative strides of a reversed array
        lengths_B = torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        rule = f"must be {x_TBD.shape[1]} integers in 1…{len(x_TBD)}"
        raise ArgumentError(f"{owner}.lengths", rule, shown(lengths), "Give a list of one length per row") from error
    return lengths_B if lengths_B.numel() else lengths_B.to(torch.int64)
