"""Files: atomic writing (the old one or the new one, never half of it), and YAML read safely."""

import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import yaml
import yaml.constructor

from gatedrnn.core.errors import CheckpointError, ConfigError, DataError

ROOM = "Free some space, or choose another folder"

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
_OF_RUST = re.compile(r"\(os error (\d+)\)")
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_WRITING = ".writing"
_DAY = 24 * 60 * 60
_SWEPT = set[Path]()
"""Folders that this process has looked through for what killed writers left."""


def write_with(path: Path, write: Callable[[Path], object], ready: Callable[[Path], object] = lambda _: None) -> None:
    """Let `write` fill a temporary file, tell `ready` of it, then move it into place of `path`.

    The temporary file is on the disk before it is moved, so that a power cut leaves the old file or the new one too. What writers
    that were killed left in the folder is removed before the first file that this process writes there.

    Raises: DataError: the folder cannot be written, or the disk is full; the old file is then still there.
    """
    with _beside(path) as temporary:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)  # as the umask has it; `write` may put another file in place
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        ready(temporary)
        temporary.replace(path)


@contextmanager
def _beside(path: Path, folder: bool = False) -> Iterator[Path]:
    """Where `path`, a file or a `folder`, is written before it is moved into its place; nothing is left there afterwards."""
    parent, missing, done = path.parent.absolute(), list[Path](), False
    try:
        missing = [each for each in (parent, *parent.parents) if not each.exists()]
        parent.mkdir(parents=True, exist_ok=True)
        if folder or parent not in _SWEPT:
            remove_stale(parent)
            _SWEPT.add(parent)
        place, descriptor = _place(path)
    except OSError as error:
        _remove_empty(missing)
        raise DataError(str(path), "the folder must be writable", error.strerror or str(error), ROOM) from error
    try:
        yield place / path.name
        done = True
    except Exception as error:
        if (got := _refusal(error)) is None:
            raise
        if folder and _taken(path):
            got = "files of another"
            raise DataError(str(path), "must stay empty meanwhile", got, "Choose another --out") from error
        advice = "Remove it, or choose another folder" if path.is_dir() else ROOM
        raise DataError(str(path), "must be writable", got, advice) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)
        if not done:
            _remove_empty(missing)


def _remove_empty(folders: list[Path]) -> None:
    """Remove those that are empty, in this order."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()


def _refusal(error: Exception) -> str | None:
    """What the system said, also to a library in Rust (safetensors, tokenizers); None for other errors."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    told = _OF_RUST.search(str(error))
    return os.strerror(int(told[1])) if told else None


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write files into a temporary folder, then move it to `path`, where nothing, or an empty folder, may be.

    Raises: DataError: something is there, it cannot be written, or the disk is full; nothing is there then that was not before.
    """
    path = path.resolve() if path.is_symlink() else path  # the folder behind it is filled
    if _taken(path):
        raise DataError(str(path), "must be a new or empty folder", "one with files", "Choose another --out")
    if path.resolve() == Path.cwd():
        raise DataError(str(path), "must be a new or empty folder", "the current one", "Choose another --out")
    with _beside(path, folder=True) as temporary:
        temporary.mkdir()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        fill(temporary)
        temporary.chmod(mode)
        if path.exists():
            _take_place(temporary, path)
        temporary.replace(path)


def _take_place(folder: Path, empty: Path) -> None:
    """Remove an empty folder, whose owner and mode `folder` gets. Raises: DataError: it is a mount. OSError: it is not empty."""
    there = empty.stat()
    try:
        empty.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise DataError(str(empty), "must not be a mount", error.strerror, "Name a folder inside it") from error
    if hasattr(os, "chown"):
        with suppress(OSError):  # only root may give a folder away
            os.chown(folder, there.st_uid, there.st_gid)
    folder.chmod(stat.S_IMODE(there.st_mode))


def _taken(path: Path) -> bool:
    """Whether something is there that is no empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def remove_stale(folder: Path) -> None:
    """Remove what writers that were killed left in `folder`. A live writer holds a lock on its place, which stays."""
    for place in folder.glob(f".*{_WRITING}"):
        with suppress(OSError):
            descriptor = _opened(place)
            try:
                if descriptor is not None:
                    _lock(descriptor)
                elif time.time() - place.stat().st_mtime < _DAY:
                    continue
                shutil.rmtree(place, ignore_errors=True)
            finally:
                if descriptor is not None:
                    os.close(descriptor)


def _place(path: Path) -> tuple[Path, int | None]:
    """A folder beside `path` for its temporary file, and those of the library that writes it; the descriptor that locks it."""
    while True:
        place = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=_WRITING))
        with suppress(FileNotFoundError):  # removed by another process, before it was locked
            descriptor = _opened(place)
            if descriptor is None:
                return place, None
            with suppress(OSError):  # held by that process, or a file system without locks
                _lock(descriptor)
            if place.exists():
                return place, descriptor
            os.close(descriptor)


def _opened(folder: Path) -> int | None:
    """A descriptor of a folder, to lock it; None on Windows, which opens no folders: there, a place of a day ago is stale."""
    return None if sys.platform == "win32" else os.open(folder, os.O_RDONLY)


def _lock(descriptor: int) -> None:
    """Hold a lock that ends with the process. Raises: OSError: another one holds it, or there are no such locks here."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def code_files(folder: Path, below: bool = False) -> list[Path]:
    """The files that hold the code of a package's folder, sorted: its sources; without any, its compiled files; without any, the
    archive or the program that has them, as a zip or a frozen program.

    Args: below: take those of its subfolders too.
    """
    for ending in ("py", "pyc"):
        found = folder.rglob(f"*.{ending}") if below else folder.glob(f"*.{ending}")
        if files := sorted(path for path in found if path.parent.name != "__pycache__"):
            return files
    return [next((parent for parent in folder.parents if parent.is_file()), Path(sys.executable))]


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 with the line ends that it has, atomically."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; bytes of a path that are not UTF-8 are escaped.

    Raises: DataError: it holds NaN or infinity, or cannot be written.
    """
    text = to_json(value, str(path), indent=2, ensure_ascii=False) + "\n"
    write_text(path, _NOT_UTF8.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def to_json(value: Any, owner: str = "result", **how: Any) -> str:
    """`value` as `json.dumps` writes it. Raises: DataError, in the name of `owner`: a number in it is NaN or infinite."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError as error:
        advice = "The model's weights are damaged or too large: restore the run, or train again"
        raise DataError(owner, "must hold finite numbers", "NaN or infinity", advice) from error


class _Yaml(yaml.SafeLoader):
    """YAML 1.1 with 1e-3 as a number and dates as words; a value that is not of its tag (`!!int x`) is an error with its line."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and value.bit_length() > _LONGEST_INT:
                raise OverflowError  # Python writes no longer ones than 4,300 digits, which hexadecimal ones may pass
            return value
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"a value that is not {kind}", node.start_mark
            ) from error

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping, before others are merged into it. Raises: MarkedYAMLError: a key stands in it twice."""
        node, known = super().compose_mapping_node(anchor), set[tuple[str, str]]()
        for key in (each for each, _ in node.value if isinstance(each, yaml.ScalarNode) and each.value != "<<"):
            if (key.tag, key.value) in known:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} twice", problem_mark=key.start_mark)
            known.add((key.tag, key.value))
        return node


_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")
_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))

_LONGEST_INT = 1024  # bits: more than the largest floating-point number has
_LONGEST_YAML = 1 << 18  # characters
_DEEPEST_YAML = 32  # levels
_LARGEST_YAML = 10_000  # values, those behind aliases counted each time


def parse_yaml(text: str) -> Any:
    """Parse YAML safely, in bounded time and memory. Raises: YAMLError: malformed, or too long, deep or large for settings."""
    if len(text) > _LONGEST_YAML:
        raise yaml.MarkedYAMLError(problem=f"more than {_LONGEST_YAML:,} characters")
    sizes: dict[str, int] = {}
    open_: list[list[Any]] = [[None, 0]]  # collections that are not complete: anchor, and values so far
    for event in yaml.parse(text, _Yaml):
        anchor, size, problem = getattr(event, "anchor", None), 0, ""
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([anchor, 1])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        elif isinstance(event, yaml.AliasEvent) and anchor in sizes:
            size = sizes[anchor]
        elif isinstance(event, yaml.AliasEvent):
            problem = f"*{anchor}, which is not defined before it"
        if size and anchor is not None:
            sizes[anchor] = size
        open_[-1][1] += size
        if len(open_) > _DEEPEST_YAML:
            problem = f"more than {_DEEPEST_YAML} levels"
        elif open_[-1][1] > _LARGEST_YAML:
            problem = f"more than {_LARGEST_YAML:,} values"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
    return yaml.load(text, _Yaml)


def read_yaml(path: Path) -> Any:
    """Parse a YAML file safely. Raises: ConfigError: missing or malformed, with the line."""
    try:
        with path.open(encoding="utf-8") as stream:
            return parse_yaml(stream.read(_LONGEST_YAML + 1))
    except OSError as error:
        raise ConfigError(str(path), "must be a readable file", error.strerror, "Check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "must be UTF-8 text", error.reason, "Convert it with iconv") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark else ""
        got = getattr(error, "problem", None) or "a syntax error"
        raise ConfigError(f"{path}{place}", "must be YAML", got, "Fix this line") from error


def exists(path: Path) -> bool:
    """Whether something is at `path`. Raises: OSError: that cannot be known, which `Path.exists` hides from Python 3.14 on."""
    try:
        path.stat()
    except ValueError:  # no name of a file
        return False
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True


def check_readable(path: Path) -> None:
    """Raises CheckpointError with the system's reason if the file cannot be opened, which is no damage."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise CheckpointError(str(path), "must be a readable file", error.strerror, "Check its permissions") from error


def yaml_text(values: Any) -> str:
    """YAML in the given order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None)


def cache_folder() -> Path:
    """Where kernels and what was measured are kept: `NUMBA_CACHE_DIR`, `XDG_CACHE_HOME` or ~/.cache, and there gatedrnn.

    Raises: DataError: none is set, and the user has no home.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache") / "gatedrnn"
    except RuntimeError as error:  # neither HOME nor an entry in the users' database
        advice = "Set HOME or XDG_CACHE_HOME to a writable folder"
        raise DataError("cache folder", "the user must have a home folder", "none", advice) from error
