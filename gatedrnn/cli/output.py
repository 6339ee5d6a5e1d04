"""What commands show: lines and tables, and what is being done; names in them are shown as they are."""

import shlex
import subprocess
import sys

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text


def as_typed(*words: str) -> str:
    """Words of a command as a person may type them into a shell; on Windows, into cmd.exe."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def say(text: str, console: Console | None = None) -> None:
    """Print a line, without a break and without reading markup or emoji codes in it. Args: console: None for standard output."""
    (console or Console()).print(Text(text), soft_wrap=True)


def show_table(table: Table, least: int = 110) -> None:
    """Print a table, as wide as the terminal, but at least `least` columns. Text in its cells is markup: escape names."""
    Console(width=max(Console().width, least), emoji=False).print(table)


def status(text: str, *, quiet: bool = False) -> Status:
    """A context in which a terminal shows, on standard error, what is being done; nothing where `quiet`."""
    return Console(stderr=True, quiet=quiet).status(Text(text))
