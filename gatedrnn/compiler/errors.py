"""Why a step has no kernels."""

from collections.abc import Sequence


class UnsupportedError(Exception):
    """What of a step the compiler cannot express, and the line of the user's file."""


def shape_told(shape: Sequence[int], batch: int) -> str:
    """A shape of a trace of `batch` rows, a number that divides no size of the Spec: with B for it, and 2B for twice it."""
    times = [0 if size % batch else size // batch for size in shape]
    sizes = [("B" if k == 1 else f"{k}B") if k else str(size) for k, size in zip(times, shape, strict=True)]
    return f"[{', '.join(sizes)}]"
