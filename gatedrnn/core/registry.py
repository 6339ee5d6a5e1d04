"""A named collection that names the nearest entry when a name is unknown."""

import re
from collections.abc import Iterator
from typing import Generic, TypeVar

from gatedrnn.core.checks import nearest
from gatedrnn.core.errors import ArgumentError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries by name, in the order of registration.

    Args:
        kind: what an entry is, for messages ("cell").
    """

    def __init__(self, kind: str, entries: dict[str, T] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})

    def register(self, name: str, entry: T) -> T:
        """Add `entry` under `name`; a name can be used only once."""
        if not re.fullmatch(r"[\w.-]+", name):
            rule = "a name must consist of letters, digits, '.', '_' and '-'"
            raise ArgumentError(self.kind, rule, repr(name), "Rename it")
        if name in self._entries:
            raise ArgumentError(self.kind, "a name can be registered once", repr(name), "Choose another name")
        self._entries[name] = entry
        return entry

    def remove(self, name: str) -> None:
        """Drop the entry `name`, which can then be registered again."""
        del self._entries[name]

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str) or name not in self._entries:
            raise ArgumentError(self.kind, "unknown name", repr(name), nearest(str(name), self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def items(self) -> Iterator[tuple[str, T]]:
        """Names and entries, in order."""
        return iter(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
