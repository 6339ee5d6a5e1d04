"""Independent, reproducible random streams from one seed and a name."""

import hashlib
import random


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on `seed` and `names` and is the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: object) -> random.Random:
    """A `random.Random` of its own for `names`."""
    return random.Random(derive(seed, *names))
