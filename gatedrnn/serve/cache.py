"""States that a model is in after the beginnings of prompts, so that a beginning that repeats is read once.

A model's weights do not change while it is served, so that no entry becomes stale.
"""

from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from torch import Tensor

from gatedrnn.models.language_model import States

_ENTRY_BYTES = 4096  # of an entry beside its numbers: tensors, tuples, keys


@dataclass(frozen=True)
class Snapshot:
    """A model after some tokens. Nothing is written into its tensors.

    Args:
        states: by layer, each [1, 1, H].
        last_1H: what the decoder reads for the next token.
    """

    states: States
    last_1H: Tensor

    @property
    def bytes(self) -> int:
        """Memory that it holds."""
        tensors = [self.last_1H, *(state for layer in self.states for state in layer)]
        return _ENTRY_BYTES + sum(tensor.nbytes for tensor in tensors)

    def copy(self) -> "Snapshot":
        """One with memory of its own."""
        return Snapshot([tuple(state.clone() for state in layer) for layer in self.states], self.last_1H.clone())


class StateCache:
    """Snapshots by model and tokens, the least recently used one dropped first.

    Args: most_bytes: memory of all of them; one that is larger than that is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.hits = 0
        self._kept: OrderedDict[tuple[str, int, bytes], Snapshot] = OrderedDict()
        self._lengths: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, model: str, ids: Sequence[int]) -> tuple[int, Snapshot | None]:
        """How many of the first ids a snapshot is known for, and the snapshot; 0 and None for none."""
        lengths = sorted(length for length in self._lengths[model] if length <= len(ids))
        found = None
        for key in _keys(model, ids, lengths):
            found = key if key in self._kept else found
        if found is None:
            return 0, None
        self.hits += 1
        self._kept.move_to_end(found)
        return found[1], self._kept[found]

    def keep(self, model: str, ids: Sequence[int], snapshot: Snapshot) -> None:
        """Keep a copy of the model's state after `ids`."""
        (key,) = _keys(model, ids, [len(ids)])
        if key in self._kept:
            self._kept.move_to_end(key)
        elif snapshot.bytes <= self.most_bytes:
            self._kept[key] = snapshot.copy()
            self._lengths[model][len(ids)] += 1
            self.bytes += snapshot.bytes
        while self.bytes > self.most_bytes:
            (name, length, _), dropped = self._kept.popitem(last=False)
            self.bytes -= dropped.bytes
            self._lengths[name][length] -= 1
            if not self._lengths[name][length]:
                del self._lengths[name][length]


def _keys(model: str, ids: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[str, int, bytes]]:
    """The key of the first `length` ids, for each of these rising lengths."""
    digest, raw, done = blake2b(digest_size=16), memoryview(array("q", ids)), 0
    for length in lengths:
        digest.update(raw[done:length])
        done = length
        yield model, length, digest.digest()
