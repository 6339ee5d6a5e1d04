"""What several tasks do with arrays of tokens, and with their loss."""

import math
import zlib

import numpy as np
import torch
from torch import Tensor


def checksum(*arrays: np.ndarray, before: int = 0) -> int:
    """CRC-32 of arrays one after another, which may be memory maps, after what `before` is the checksum of."""
    for array in arrays:
        for start in range(0, len(array), 1 << 22):
            before = zlib.crc32(np.ascontiguousarray(array[start : start + (1 << 22)]).tobytes(), before)
    return before


def on(device: torch.device, array: np.ndarray) -> Tensor:
    """An array as a tensor there."""
    return torch.from_numpy(array).contiguous().to(device)


def loss_and_perplexity(nats: float) -> dict[str, float]:
    """Measures of a mean loss, by name; the perplexity is that of 700 nats at most, so that it is a number."""
    return {"loss_nats": nats, "perplexity": math.exp(min(nats, 700))}


def at_least_float32(values: Tensor) -> Tensor:
    """In a type that sums and exponentials may be taken in: bfloat16 and float16 as float32, others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
