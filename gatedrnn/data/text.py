"""Reading UTF-8 text, plain or gzip, line by line in constant memory, and the JSON in it."""

import errno
import gzip
import io
import json
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, final

from gatedrnn.core.errors import DataError

_BATCH_BYTES = 1 << 18
_LONGEST_LINE = 1 << 28  # bytes: what unpacks to more without a line's end is no text


@final
class Kept:
    """A text that can be read only once, as a pipe can, kept in a temporary file to be read again; it is named as before.

    Args: name: `-` for standard input, or a path.
    Raises: DataError: as `read_lines`, or there is no room for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self._path = Path(self._folder.name) / "text"
            with self._path.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(f"{line}\n" for _, line in read_lines(name))
        except OSError as error:
            raise no_room("text", error) from error

    def __str__(self) -> str:
        return self.name

    def __fspath__(self) -> str:
        return str(self._path)

    def open(self, *how: Any, **options: Any) -> IO[Any]:
        """The text from its beginning, as `Path.open`."""
        return self._path.open(*how, **options)


def no_room(what: str, error: OSError) -> DataError:
    """The error of a temporary folder that cannot hold `what`."""
    rule, reason = f"must have room for the {what}", error.strerror or str(error)
    return DataError(tempfile.gettempdir(), rule, reason, "Free some space, or set TMPDIR")


def rereadable(path: "str | Path | Kept") -> Path | Kept:
    """The path of a text that will be read several times; what can be read only once is kept. Raises: as `Kept`."""
    if not isinstance(path, str):
        return path
    try:
        once = path == "-" or stat.S_IFMT(Path(path).stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR)
    except (OSError, ValueError):  # the reader says what is wrong
        once = False
    return Kept(path) if once else Path(path)


def read_lines(path: Path | Kept | str) -> Iterator[tuple[int, str]]:
    """Lines of a text file as (number from 1, text without line ending); "-" reads standard input.

    Handles `.gz`, a byte-order mark, CRLF and a missing final newline.

    Raises: DataError: the file is missing, a folder, unreadable, not gzip, or not UTF-8 text in lines (with the line).
    """
    name, number = str(path), 0
    with _reading(path) as stream:
        while raw := _line(name, number + 1, stream):
            number += 1
            if number == 1:
                _check_ends(name, raw)
            yield number, _decode(name, number, raw)


def read_batches(path: Path | Kept | str) -> Iterator[list[str]]:
    """Lines as `read_lines` gives them, a few thousand at a time: for whole corpora. Raises as `read_lines`."""
    name, first = str(path), 1
    with _reading(path) as stream:
        while raw := stream.read(_BATCH_BYTES):
            raw += _line(name, first + raw.count(b"\n"), stream)
            if first == 1:
                _check_ends(name, raw)
            lines = _decode_lines(name, first, raw)
            yield lines
            first += len(lines)


def read_sentences(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Lines that have a word, as (line number, words split at white space). Raises as `read_lines`."""
    for number, line in read_lines(path):
        words = line.split()
        if words:
            yield number, words


def parse_object(text: str, place: str, what: str) -> dict[str, Any]:
    """The JSON object that a text is.

    Args: place: where it stands, for messages; what: what its file must be.
    Raises: DataError: it is none, or holds half of a character.
    """
    rule, advice = "must be a JSON object", f"Is it {what}?"
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        got = f"a lone surrogate, {error.object[error.start]!a}"
        raise DataError(place, "must be Unicode text", got, "Write the character itself") from error
    except (ValueError, RecursionError) as error:
        raise DataError(place, rule, str(error), advice) from error
    if not isinstance(found, dict):
        raise DataError(place, rule, repr(text[:40]), advice)
    return found


@contextmanager
def _reading(path: Path | Kept | str) -> Iterator[BinaryIO]:
    try:
        with _open(path) as stream:
            yield stream
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(str(path), "must be a readable file", reason, "Check the path") from error


def _open(path: Path | Kept | str) -> BinaryIO:
    if isinstance(path, Kept):
        return path.open("rb")  # type: ignore[return-value]
    name = str(path)
    if name == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        return io.BufferedReader(sys.stdin.buffer)  # type: ignore[arg-type]
    return gzip.open(name, "rb") if name.endswith(".gz") else Path(name).open("rb")  # type: ignore[return-value]


def _line(name: str, number: int, stream: BinaryIO) -> bytes:
    raw = stream.readline(_LONGEST_LINE)
    if len(raw) == _LONGEST_LINE:
        got, advice = f"a line of {_LONGEST_LINE >> 20} MiB or more", "Break it into lines"
        raise DataError(f"{name}:{number}", "must be text in shorter lines", got, advice)
    return raw


def _check_ends(name: str, raw: bytes) -> None:
    """Raises DataError: the beginning of a text has line ends, but those of old computers alone: it would be one line."""
    if b"\n" not in raw and b"\r" in raw.rstrip(b"\r"):
        advice = "Convert them: tr '\\r' '\\n' < OLD > NEW"
        raise DataError(name, "must be text in lines", "carriage returns and no line feed", advice)


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
