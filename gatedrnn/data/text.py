"""Reading UTF-8 text, plain or gzip, line by line in constant memory."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gatedrnn.core.errors import DataError

_BATCH_BYTES = 1 << 18


def read_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Lines of a text file as (number from 1, text without line ending); "-" reads standard input.

    Handles `.gz`, a byte-order mark, CRLF and a missing final newline.

    Raises: DataError: the file is missing, a folder, unreadable, not gzip, or not UTF-8 text (with the line).
    """
    name = str(path)
    with _reading(name) as stream:
        for number, raw in enumerate(stream, 1):
            yield number, _decode(name, number, raw)


def read_batches(path: Path | str) -> Iterator[list[str]]:
    """Lines as `read_lines` gives them, a few thousand at a time: for whole corpora. Raises as `read_lines`."""
    name, first = str(path), 1
    with _reading(name) as stream:
        while raw := stream.read(_BATCH_BYTES):
            lines = _decode_lines(name, first, raw + stream.readline())
            yield lines
            first += len(lines)


def read_sentences(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Lines that have a word, as (line number, words split at white space). Raises as `read_lines`."""
    for number, line in read_lines(path):
        words = line.split()
        if words:
            yield number, words


@contextmanager
def _reading(name: str) -> Iterator[BinaryIO]:
    try:
        with _open(name) as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(name, "must be a readable file", reason, "Check the path") from error


def _open(name: str) -> BinaryIO:
    if name == "-":
        return io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
    return gzip.open(name, "rb") if name.endswith(".gz") else Path(name).open("rb")  # type: ignore[return-value]


def _decode_lines(name: str, first: int, raw: bytes) -> list[str]:
    """Whole lines in bulk; one that is not text is looked for by itself, so that the error names it."""
    raw = raw.removesuffix(b"\n")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return [_decode(name, number, line) for number, line in enumerate(raw.split(b"\n"), first)]
    lines = (text.removeprefix("\ufeff") if first == 1 else text).split("\n")
    return [line.rstrip("\r") for line in lines] if "\r" in text else lines


def _decode(name: str, number: int, raw: bytes) -> str:
    if b"\x00" in raw:
        raise DataError(f"{name}:{number}", "must be text", "a NUL byte", "Is it a binary file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        raise DataError(f"{name}:{number}", "must be UTF-8 text", got, "Convert it with iconv") from error
    return text.removeprefix("\ufeff").rstrip("\r\n") if number == 1 else text.rstrip("\r\n")
