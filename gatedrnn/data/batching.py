"""Contiguous batches for truncated back-propagation through time.

The stream is cut into B equal stretches read side by side, so that a carried state always continues. Every token is
predicted exactly once: the first of the stream from `<eos>`, the last of a short stretch is followed by padding.
Dimensions: T steps of a window, B batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import DataError

PAD_TARGET = -100
"""Target of a position that predicts nothing; torch's cross-entropy ignores it."""


@dataclass(frozen=True)
class Window:
    """Inputs and targets of one window, int64 [T, B]; padded targets are PAD_TARGET; `tokens` counts the others."""

    inputs_TB: np.ndarray
    targets_TB: np.ndarray
    tokens: int


def steps_per_epoch(tokens: int, batch_size: int, sequence_length: int) -> int:
    """How many windows `windows` yields."""
    stretch = -(-tokens // batch_size)
    return -(-stretch // sequence_length)


def windows(tokens: np.ndarray, batch_size: int, sequence_length: int, first_input: int) -> Iterator[Window]:
    """Windows of `sequence_length` steps (the last may be shorter) over B stretches of a stream.

    Args:
        tokens: ids [N], a memory map will do: only the window's own tokens are read.
        batch_size: B, stretches side by side; sequence_length: T, steps.
        first_input: the id that precedes the stream, `<eos>`.

    Raises: ArgumentError: a size is not positive. DataError: no token.
    """
    positive_int("training.batch_size", batch_size)
    positive_int("training.sequence_length", sequence_length)
    n = len(tokens)
    if n == 0:
        raise DataError("windows.tokens", "must hold at least one token", 0, "Check the text")
    stretch = -(-n // batch_size)
    starts = [b * stretch for b in range(batch_size)]
    for step in range(0, stretch, sequence_length):
        length = min(sequence_length, stretch - step)
        inputs = np.full((length, batch_size), first_input, np.int64)
        targets = np.full((length, batch_size), PAD_TARGET, np.int64)
        for b, start in enumerate(starts):
            low, high = start + step, min(start + step + length, start + stretch, n)
            if high <= low:
                continue
            targets[: high - low, b] = tokens[low:high]
            skip = 1 if low == 0 else 0
            inputs[skip : high - low, b] = tokens[low - 1 + skip : high - 1]
        yield Window(inputs, targets, int((targets != PAD_TARGET).sum()))
