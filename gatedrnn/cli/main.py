"""`gatedrnn COMMAND`: one parser, one place where errors become one line and an exit code.

0 done, 1 error, 2 usage, 130 interrupted.
"""

import argparse
import codecs
import errno
import io
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, set_loader  # pyright: ignore[reportPrivateImportUsage]

import gatedrnn
from gatedrnn.cli.arguments import Found, add_options, as_typed, read_options
from gatedrnn.cli.commands import COMMANDS, CommandModule, command_module
from gatedrnn.cli.processes import processes, rank
from gatedrnn.cli.text import INTERRUPTED, check_folder
from gatedrnn.core.checks import nearest
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.core.files import parse_yaml, to_json

_LONGEST_VALUE = 4096  # characters of an option that is no text: YAML's C parser crashes on deep nesting
_LONGEST_MESSAGE = 1000
_NO_MEMORY = "allocate", "calculation overflowed"  # in messages of PyTorch
_KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "tuple": "a list"}
_plain = warnings.formatwarning
_READING = "gatedrnn"  # our own mode of reading values: YAML in bounded time


class _Parser(ArgumentParser):
    """Reports a usage error in one line, an unknown option with the nearest known one.

    `shown` is what its help is asked of, `children` the parsers of its commands.
    """

    shown = "gatedrnn"

    def __init__(self, *arguments: Any, **options: Any) -> None:  # the library too makes some, for mappings
        self.children: dict[str, _Parser] = {}
        super().__init__(*arguments, **{"parser_mode": _READING, "allow_abbrev": False} | options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message in one line, and exit with 2."""
        if isinstance(ex, GatedRNNError):
            raise ex
        flat = _short(_of_type(_required(" ".join(str(message).split())), self._option_string_actions))
        unknown = re.search(r"unrecognized arguments: (--[\w.-]+)", flat)
        if unknown:
            flat += f". {nearest(unknown[1], self._option_string_actions)}"
        print(f"gatedrnn: usage: {flat} (see {self.shown} --help)", file=sys.stderr)
        sys.exit(2)

    def _parse_optional(self, arg_string: str) -> Any:
        """As the library, which would read `--out.x VALUE` as `--out VALUE`."""
        name, known = arg_string.partition("=")[0], self._option_string_actions
        head = name
        while name.startswith("--") and name not in known and "." in head:
            head = head.rpartition(".")[0]
            if (
                head in known
                and not _has_keys(known[head])
                and not any(other.startswith(f"{head}.") for other in known)
            ):
                self.error(f"unrecognized arguments: {name}")
        return super()._parse_optional(arg_string)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        kind = getattr(action, "_typehint", str)
        longest = 0 if kind in (str, str | None) else max(map(len, arg_strings), default=0)
        if longest > _LONGEST_VALUE:
            self.error(f"argument {action.dest}: at most {_LONGEST_VALUE:,} characters; got {longest:,}")
        if action.nargs is None and arg_strings == ["--"]:  # of --option=--, which argparse drops before Python 3.13
            return self._get_value(action, "--")  # type: ignore[attr-defined]
        return super()._get_values(action, arg_strings)  # type: ignore[misc]


def _has_keys(action: argparse.Action) -> bool:
    """Whether an option's value is a mapping, whose keys may be given one by one."""
    kind = getattr(action, "_typehint", None)
    return any(get_origin(each) is dict or is_dataclass(each) for each in (kind, *get_args(kind)))


def _of_type(message: str, options: Container[str]) -> str:
    """The library's message for a value of the wrong type, in words."""
    found = re.search(r'key "([^"]+)": (?:Does not validate|Expected).*(?:Given value|Got value): (.*)$', message)
    kinds = [_KINDS[kind] for kind in _KINDS if found and f"<class '{kind}'>" in message[: found.start(2)]]
    if not found or not kinds:
        return message
    name = f"--{found[1]}" if f"--{found[1]}" in options else found[1]
    return f"{name}: must be {' or '.join(kinds)}; got {found[2]}"


def _required(message: str) -> str:
    """The library's message for arguments that are missing, which it names as `parse.runs`, with the names that help shows."""
    said, missing, names = message.partition("arguments are required: ")
    shown = []
    for name in names.split(", ") if missing else []:
        command, _, dest = name.rpartition(".")
        known: Any = command_module(command).Options if command in COMMANDS else None
        shown.append(as_typed(known, dest) if known else name)
    return said + missing + ", ".join(shown)


def _places_first(parser: Any, arguments: list[str]) -> list[str]:
    """A command's arguments with those that belong to no option first: argparse takes them from one place only."""
    known, places, options, left = parser._option_string_actions, list[str](), list[str](), iter(arguments)
    for argument in left:
        if argument == "--":  # what follows belongs to no option, whatever it looks like
            return [*options, "--", *places, *left]
        if argument == "-" or not argument.startswith("-"):
            places.append(argument)
            continue
        options.append(argument)
        action = known.get(argument)
        if "=" not in argument and (action is None or action.nargs != 0):
            options += [value for value in [next(left, None)] if value is not None]
    return places + options


def build_parser(command: str | None = None, arguments: Sequence[str] = ()) -> _Parser:
    """The parser with the options of one command, which the arguments may decide; None for those of all."""
    set_loader(_READING, parse_yaml, (yaml.YAMLError,))
    parser = _Parser(
        prog="gatedrnn",
        description="Gated recurrent networks: train them on plain text, read trees off their gates.",
        version=gatedrnn.__version__,
    )
    if command in COMMANDS:
        parser.shown = f"gatedrnn {command}"
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        child = _Parser(description=f"gatedrnn {name}: {text}.")
        child.shown = f"gatedrnn {name}"
        if command in (None, name):
            chosen: Any = command_module(name)
            add_options(child, chosen.Options)
            if hasattr(chosen, "add_sections"):
                chosen.add_sections(child, list(arguments))
            child.add_argument("--json", action="store_true", help="machine-readable output")
            child.add_argument(
                "--import", dest="imported", metavar="FILE", help="Python file with cells of your own; repeatable"
            )
        commands.add_subcommand(name, child, help=text)
        parser.children[name] = child
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns: 0, 1 on an error, 130 if it was interrupted; usage errors exit with 2."""
    given = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:  # closed: what is printed there would be printed to the output
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("as in JSON", _escaped)
        if not (
            sys.stdout.isatty() or os.environ.get("PYTHONIOENCODING")
        ):  # into a file or a pipe, which are read as UTF-8
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="as in JSON")  # letters that the terminal lacks
    warnings.formatwarning, before = _warning, warnings.formatwarning
    try:
        code = report_errors(lambda: _dispatch(given))
    finally:
        warnings.formatwarning = before
    if processes() > 1:  # gloo's threads may deadlock or abort while the interpreter ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def report_errors(run: Callable[[], int]) -> int:
    """What `run` returns; an error of ours, of the output or of memory as one line, and 1; 130 on Ctrl-C."""
    try:
        try:
            return run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except GatedRNNError as error:
        from gatedrnn.cells.own import error_in_own_file

        _say(str(error_in_own_file(error) or error))
    except KeyboardInterrupt as stop:
        _say(": ".join(["interrupted", *map(str, stop.args)]))
        return INTERRUPTED
    except OSError as error:  # files that we read and write have errors of their own: this is the output's, or a path's
        _drop_output()
        if error.errno != errno.EPIPE:
            _say(_of_file(error))
    except Exception as error:
        from gatedrnn.cells.own import error_in_own_file

        no_room = isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)
        if isinstance(error, MemoryError) or no_room:
            _say("memory: must hold the model and its batches; got too little memory. Choose smaller sizes.")
        elif own := error_in_own_file(error):
            _say(str(own))
        else:
            raise
    return 1


def _of_file(error: OSError) -> str:
    """The message for what cannot be read or written."""
    place = "standard output" if error.filename is None else error.filename
    got = error.strerror or error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place}: must be writable; got {got}. Free some space, or choose another place."
    return f"{place}: cannot be read or written; got {got}. Check the path, its permissions and the free space."


def _escaped(error: Any) -> tuple[str, int]:
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning that a line of this package gives, in one line; others as Python writes them."""
    if not Path(filename).is_relative_to(Path(gatedrnn.__file__).parent):
        return _plain(message, category, filename, lineno, line)
    return f"gatedrnn: {' '.join(str(message).split()).removeprefix('gatedrnn: ')}\n"


def _say(text: str) -> None:
    print(f"gatedrnn: {_short(' '.join(text.splitlines()))}", file=sys.stderr)


def _short(text: str) -> str:
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


def _drop_output() -> None:
    """Let nobody try again to write what could not be written."""
    with suppress(OSError, ValueError):  # no file at all, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _without_imports(arguments: list[str]) -> list[str]:
    """Import the file of every `--import FILE`, and leave those out: what follows may name their cells."""
    from gatedrnn.cells.own import import_cells

    left, files, rest = list[str](), list[str](), iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--":  # what follows is no option
            left += [argument, *rest]
        elif name == "--import" and (equals or (value := next(rest, ""))):
            files.append(value)
        else:
            left.append(argument)
    for file in files:
        import_cells(Path(file))
    return left


def _parsed(arguments: list[str], command: str) -> Any:
    parser = build_parser(command, arguments)
    arguments = [command, *_places_first(parser.children[command], arguments[1:])]
    try:
        return parser.parse_args(arguments)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, GatedRNNError):
            raise
        parser.error(f"an option cannot be read: {error}")  # what the library's YAML lets through: --words '!!int x'


def _dispatch(arguments: list[str]) -> int:
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ArgumentError("arguments", "must be UTF-8", ascii(argument), "Rename the file, or fix the text")
    said = shlex.join(["gatedrnn", *arguments])
    if any(argument.partition("=")[0] == "--import" for argument in arguments):
        arguments = _without_imports(arguments)
    command = next(iter(arguments), "")
    if command not in COMMANDS:
        build_parser(command).parse_args(arguments)  # says what is wrong, or prints what was asked for
        return 0
    chosen: Any = command_module(command)
    arguments, more = chosen.prepare(arguments) if hasattr(chosen, "prepare") else (arguments, {})
    parsed = _parsed(arguments, command)[command]
    kept = more.pop("files", None)  # noqa: F841 - temporary copies, of which the arguments may tell, live as long as it does
    options = read_options(chosen.Options, parsed, said, **more)
    for name in ("out", "svg"):
        if getattr(options, name, None) is not None:
            check_folder(f"--{name}", getattr(options, name))
    return _told(chosen, options)


def _told(chosen: CommandModule, options: Any) -> int:
    """Run a command and print what it finds; its exit code."""
    found = chosen.run(options)
    record = found.record if isinstance(found, Found) else found
    if rank() > 0:  # of several processes, the first one speaks
        pass
    elif not options.json:
        chosen.show(found, options)
    elif isinstance(record, Iterator):
        for one in record:
            print(to_json(one, ensure_ascii=False))
    else:
        print(to_json(record))
    return INTERRUPTED if isinstance(record, dict) and record.get("stopped") == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
