"""Independent, reproducible random streams from one seed and a name."""

import hashlib
import random


def stream(seed: int, *names: object) -> random.Random:
    """A `random.Random` of its own for `seed` and `names`, the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1)
