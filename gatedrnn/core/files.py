"""Files: atomic writing (the old one or the new one, never half of it), and YAML read safely."""

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import yaml
import yaml.constructor

from gatedrnn.core.errors import ConfigError, DataError

ROOM = "Free some space, or choose another folder"


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then move it into place.

    Raises: DataError: the folder cannot be written, or the disk is full; the old file is then still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise DataError(str(path), "the folder must be writable", error.strerror or str(error), ROOM) from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise DataError(str(path), "must be writable", error.strerror or str(error), ROOM) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class _Yaml(yaml.SafeLoader):
    """YAML 1.1 with 1e-3 as a number and dates as words; a value that is not of its tag (`!!int x`) is an error with its line."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"a value that is no {kind}", node.start_mark
            ) from error


_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+$"), list("-+0123456789"))

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
        raise ConfigError(f"{path}{place}", "must be YAML", got, "Mend this line") from error


def write_yaml(path: Path, values: Any) -> None:
    """Write YAML in the given order, atomically."""
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None))


def cache_folder() -> Path:
    """Where kernels and what was measured are kept: `NUMBA_CACHE_DIR`, `XDG_CACHE_HOME` or ~/.cache, and there gatedrnn.

    Raises: DataError: none is set, and the user has no home.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache") / "gatedrnn"
    except RuntimeError as error:  # neither HOME nor an entry in the users' database
        advice = "Set HOME or XDG_CACHE_HOME to a folder that can be written"
        raise DataError("cache folder", "the user must have a home folder", "none", advice) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
