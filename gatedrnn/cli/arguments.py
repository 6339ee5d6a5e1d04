"""A command's options, written once: the fields of a dataclass, which become a parser's arguments and are read back."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser  # pyright: ignore[reportPrivateImportUsage]

from gatedrnn.core.errors import ArgumentError

_PLACE, _OPTION, _SETTINGS, _SECTION = "place", "option", "settings", "section"
_PATHS = {
    "RUN": "folder",
    "STUDENT": "folder",
    "DIR": "folder",
    "FILE": "file",
    "CONFIG": "file",
    "PATH": "file or folder",
}
"""What a value shown by such a name is."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command takes.

    Args:
        json: whether a record is printed instead of words.
        said: the command line.
        given: options that it names.
    """

    json: bool = False
    said: str = ""
    given: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """What a command found. Args: record: as `--json` prints it; more: what it shows besides."""

    record: Any
    more: Any


def place(name: str, text: str, default: Any = MISSING) -> Any:
    """A positional argument, shown as `name`; a tuple takes several, one at least unless there is a default."""
    return field(default=default, kw_only=True, metadata={"kind": _PLACE, "metavar": name, "help": text})


def run_place() -> Any:
    """RUN."""
    return place("RUN", "folder of a trained run")


def option(default: Any, text: str, name: str | None = None, choices: Any = None) -> Any:
    """An option, its value shown as `name`; a bool is a switch, a tuple can be given again and again."""
    return field(
        default=default,
        kw_only=True,
        metadata={"kind": _OPTION, "metavar": name, "help": text, "choices": choices},
    )


def required(text: str, name: str) -> Any:
    """An option that must be given."""
    return option(MISSING, text, name)


def settings(
    of: type, names: Mapping[str, str], switch: str = "", text: str = "", reads: Any = None, choices: Any = None
) -> Any:
    """A dataclass of the study whose fields are options; what is not given has the dataclass's default.

    Args:
        of: the dataclass; its docstring says what each field is.
        names: field by option.
        switch: an option without which there is none of it; `text` says what it does. Without a switch there is one, unless a
            field that has no default is not given.
        reads: functions that read a value, by option.
        choices: values to choose from, by option.
    """
    metadata = {"kind": _SETTINGS, "of": of, "names": names, "switch": switch, "help": text}
    metadata |= {"reads": reads or {}, "choices": choices or {}}
    return field(default=None, kw_only=True, metadata=metadata)


def section() -> Any:
    """A section of a run's YAML, as a mapping; the command adds its arguments itself."""
    return field(default_factory=dict, kw_only=True, metadata={"kind": _SECTION})


def add_options(parser: ArgumentParser, kind: type) -> None:
    """Add every argument of the dataclass `kind` to a parser."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        metadata, default = each.metadata, None if each.default is MISSING else each.default
        if metadata.get("kind") == _PLACE:
            _add_place(parser, each, hints[each.name])
        elif metadata.get("kind") == _OPTION:
            how = {"choices": metadata["choices"]} if metadata["choices"] is not None else {}
            how |= {"required": True} if each.default is MISSING else {}
            _add_option(parser, each.name, hints[each.name], default, metadata["metavar"], metadata["help"], **how)
        elif metadata.get("kind") == _SETTINGS:
            _add_settings(parser, metadata)


def read_options(kind: type, parsed: Any, said: str, **more: Any) -> Any:
    """A `kind` of what a parser found. Raises: ArgumentError: an empty path, a setting out of range, or without its switch."""
    values, given = dict[str, Any](), set[str]()
    for each in fields(kind):
        if each.metadata.get("kind") == _SETTINGS:
            values[each.name] = _read_settings(each.metadata, parsed, given)
        elif each.metadata.get("kind") == _SECTION:
            value = parsed[each.name]
            values[each.name] = value.as_dict() if hasattr(value, "as_dict") else value
        elif each.metadata:
            value = parsed[each.name]
            if isinstance(value, list):
                value = tuple(value)
            _check_named(each, value)
            if value is None:
                value = each.default
            values[each.name] = value
            given |= {each.name} if value != each.default else set()
    return kind(**{"given": frozenset(given)} | values | more, json=parsed.json, said=said)


def _check_named(each: "Field[Any]", value: Any) -> None:
    """Raise ArgumentError if the name of a file or folder is empty, which would be the current folder, or count as none."""
    shown = each.metadata["metavar"]
    if shown in _PATHS and "" in (value if isinstance(value, tuple) else (value,)):
        owner = shown if each.metadata["kind"] == _PLACE else flag_of(each.name)
        raise ArgumentError(owner, f"must name a {_PATHS[shown]}", "an empty name", f"Choose another {owner}")


def flag_of(name: str) -> str:
    """The option `name` as it is written on the command line."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def as_typed(kind: type, name: str) -> str:
    """The argument `name` of the dataclass `kind` as help shows it: `RUN`, `--out DIR`."""
    metadata = next((each.metadata for each in fields(kind) if each.name == name), {})
    flag = [] if metadata.get("kind") == _PLACE else [flag_of(name)]
    return " ".join([*flag, *filter(None, [metadata.get("metavar")])])


def _add_place(parser: ArgumentParser, each: "Field[Any]", hint: Any) -> None:
    how: dict[str, Any] = {"metavar": each.metadata["metavar"], "type": str, "help": each.metadata["help"]}
    if _several(hint):
        parser.add_argument(each.name, nargs="+" if each.default is MISSING else "*", **how)
    elif each.default is MISSING:
        parser.add_argument(each.name, **how)
    else:
        parser.add_argument(each.name, nargs="?", default=each.default, **how)


def _add_option(
    parser: ArgumentParser, name: str, hint: Any, default: Any, metavar: str | None, text: str, **how: Any
) -> None:
    flag = flag_of(name)
    how |= {"dest": name, "help": text}
    if hint is bool:
        parser.add_argument(flag, action="store_true", **how)
        return
    how |= {"metavar": metavar} if metavar else {}
    if _several(hint):
        parser.add_argument(flag, action="append", **how)
        return
    kinds = {each for each in get_args(hint) if each is not type(None)} or {hint}
    if kinds != {str}:
        how["type"] = hint
    parser.add_argument(flag, default=default, **how)


def _add_settings(parser: ArgumentParser, metadata: Mapping[str, Any]) -> None:
    of, hints = metadata["of"], get_type_hints(metadata["of"])
    told = {each.arg_name: each.description or "" for each in parse_docstring(of.__doc__ or "").params}
    if metadata["switch"]:
        parser.add_argument(f"--{metadata['switch']}", action="store_true", help=metadata["help"])
    for name, of_field in metadata["names"].items():
        default = next(each.default for each in fields(of) if each.name == of_field)
        form = "g" if isinstance(default, float) else ""
        shown = f" [{default:{form}}]" if isinstance(default, int | float | str) else ""
        text = " ".join(told.get(of_field, "").split()).rstrip(".").replace("`", "").replace("%", "%%") + shown
        hint = str if name in metadata["reads"] else hints[of_field]
        how = {"choices": metadata["choices"][name]} if name in metadata["choices"] else {}
        _add_option(parser, name, hint | None, None, None, text, **how)


def _read_settings(metadata: Mapping[str, Any], parsed: Any, given: set[str]) -> Any:
    of, switch = metadata["of"], metadata["switch"]
    reads: Mapping[str, Callable[[Any], Any]] = metadata["reads"]
    values = {}
    for name, of_field in metadata["names"].items():
        if parsed[name] is None:
            continue
        given.add(name)
        values[of_field] = reads[name](parsed[name]) if name in reads else parsed[name]
    if switch and parsed[switch]:
        given.add(switch)
    elif switch and values:
        flag = flag_of(next(name for name in metadata["names"] if name in given))
        raise ArgumentError(flag, f"needs --{switch}", "none", f"Add --{switch}, or drop {flag}")
    elif switch or any(each.default is MISSING and each.name not in values for each in fields(of)):
        return None
    return of(**values)


def _several(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is tuple
