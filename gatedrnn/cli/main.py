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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace, set_loader  # pyright: ignore[reportPrivateImportUsage]

import gatedrnn
from gatedrnn.cli.options import COMMANDS
from gatedrnn.cli.text import INTERRUPTED, check_folder
from gatedrnn.core.checks import nearest
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.core.files import parse_yaml, read_yaml, yaml_text
from gatedrnn.data.text import rereadable

_LONGEST_VALUE = 4096  # characters of an option that is no text: YAML's C parser crashes on deep nesting
_LONGEST_MESSAGE = 1000
_READING = "gatedrnn"  # our own mode of reading values: YAML in bounded time


class _Parser(ArgumentParser):
    """Reports a usage error in one line, an unknown option with the nearest known one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # the library too makes some, for mappings
        super().__init__(*arguments, **{"parser_mode": _READING, "allow_abbrev": False} | options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message in one line, and exit with 2."""
        if isinstance(ex, GatedRNNError):
            raise ex
        flat = _short(" ".join(str(message).split()))
        unknown = re.search(r"unrecognized arguments: (--[\w.-]+)", flat)
        if unknown:
            flat += f". {nearest(unknown[1], self._option_string_actions)}"
        print(f"gatedrnn: usage: {flat} (see gatedrnn --help)", file=sys.stderr)
        sys.exit(2)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        kind = getattr(action, "_typehint", str)
        longest = 0 if kind in (str, str | None) else max(map(len, arg_strings), default=0)
        if longest > _LONGEST_VALUE:
            self.error(f"argument {action.dest}: at most {_LONGEST_VALUE:,} characters; got {longest:,}")
        if action.nargs is None and arg_strings == ["--"]:  # of --option=--, which argparse drops before Python 3.13
            arg_strings = ["--", "--"]
        return super()._get_values(action, arg_strings)  # type: ignore[misc]


def build_parser(task: str = "language_modelling") -> ArgumentParser:
    """The parser of every command, that of `train` for a task."""
    set_loader(_READING, parse_yaml, (yaml.YAMLError,))
    parser = _Parser(
        prog="gatedrnn",
        description="Gated recurrent networks: train them on plain text, read trees off their gates.",
        version=gatedrnn.__version__,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", required=True)
    for name, (fill, text) in COMMANDS.items():
        child = _Parser(description=f"gatedrnn {name}: {text}.")
        fill(child, task) if name == "train" else fill(child)
        child.add_argument("--json", action="store_true", help="machine-readable output")
        child.add_argument(
            "--import", dest="imported", metavar="FILE", help="Python file with cells of your own; repeatable"
        )
        commands.add_subcommand(name, child, help=text)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns: 0, 1 on an error, 130 if it was interrupted; usage errors exit with 2."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("as in JSON", _escaped)
        sys.stdout.reconfigure(errors="as in JSON")  # letters that the terminal lacks
    code = report_errors(lambda: _dispatch(given))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # gloo's threads may deadlock or abort while the interpreter ends
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
        _say(str(error))
    except KeyboardInterrupt as stop:
        _say(": ".join(["interrupted", *map(str, stop.args)]))
        return INTERRUPTED
    except OSError as error:  # files that we read and write have errors of their own: this is the output's, or a path's
        _drop_output()
        if error.errno != errno.EPIPE:
            place = "standard output" if error.filename is None else error.filename
            _say(f"{place}: must be writable; got {error.strerror or error}. Free some space, or choose another place.")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):  # PyTorch has no class for it
            raise
        _say("memory: must hold the model and its batches; got too little. Choose smaller sizes.")
    return 1


def _escaped(error: Any) -> tuple[str, int]:
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _say(text: str) -> None:
    print(f"gatedrnn: {_short(' '.join(text.splitlines()))}", file=sys.stderr)


def _short(text: str) -> str:
    return (
        text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE // 2]} … {text[-_LONGEST_MESSAGE // 2 :]}"
    )


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
        if name == "--import" and (equals or (value := next(rest, ""))):
            files.append(value)
        else:
            left.append(argument)
    for file in files:
        import_cells(Path(file))
    return left


def _as_keys(arguments: list[str]) -> list[str]:
    """`--data DIR`, and options of a cell as earlier versions had them, written as the configuration keys they set."""
    from gatedrnn.models.config import OLD_KEYS

    keys = {"--data": "--data.folder"} | {f"--model.{key}": f"--model.options.{key}" for key in OLD_KEYS}
    parts = (argument.partition("=") for argument in arguments)
    return ["".join([keys.get(name, name), equals, value]) for name, equals, value in parts]


def _given(arguments: list[str]) -> tuple[list[str], set[str], dict[str, str], list[Any]]:
    """Arguments as they can be read again, the keys they set (in `--config` too), the cell of the file by key, the files.

    Keys by cell are those that `--config` alone sets.
    Reads the files strictly, so that a wrong key is named with the nearest known one.
    """
    from gatedrnn.models.config import with_options
    from gatedrnn.training.config import read_run_config

    again, keys, files, cells = list(arguments), set(), list[Any](), dict[str, str]()
    for k, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not equals:
            value = arguments[k + 1] if k + 1 < len(arguments) else ""
        read = None  # what to read instead of `value`
        if name == "--config" and value:
            files.append(rereadable(value))
            cell: str = read_run_config(files[-1], written=True).model.cell  # `train` refuses what has no use
            values = read_yaml(files[-1]) or {}
            new = {section: with_options(own) if section == "model" else own for section, own in values.items()}
            read = os.fspath(files[-1]) if new == values else yaml_text(new)
            cells |= dict.fromkeys(_keys("", new), cell)
        elif name in ("--model", "--training", "--model.gates", "--model.options"):
            values = _mapping(value)
            new = with_options(values) if name == "--model" else values
            read = None if new == values else yaml_text(new)
            keys |= _keys(f"{name[2:]}.", new)
        if read is not None:
            again[k if equals else k + 1] = (f"{name}=" if equals else "") + read
        if name.startswith(("--data.", "--model.", "--training.")):
            keys.add(name[2:])
    cells = {key: cell for key, cell in cells.items() if key not in keys}
    keys = (keys | cells.keys()) - {"model.options"}  # whose own keys count
    return again, {key for key in keys if "." in key}, cells, files


def _task(arguments: list[str]) -> str:
    """The task of `train`: that of `--task`, of the last `--config` that names one, or of the run in `--out`."""
    from gatedrnn.tasks import TASKS

    said, options = "language_modelling", dict[str, list[str]]()
    for k, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        options.setdefault(name, []).append(value if equals else "".join(arguments[k + 1 : k + 2]))
    if "--resume" in options:
        known = _task_of(Path(options.get("--out", ["."])[-1]) / "config.yaml")
        said = known if known and known in TASKS else said  # a damaged file is named where the run is read
    for path in options.get("--config", []):
        said = _task_of(path) or said
    return options.get("--task", [said])[-1]


def _task_of(file: Any) -> str | None:
    """What a run's YAML, or its text, says of its task."""
    with suppress(GatedRNNError, OSError, yaml.YAMLError, ValueError):
        values = read_yaml(Path(file)) if Path(file).is_file() else parse_yaml(str(file))
        return values.get("task") if isinstance(values, dict) else None
    return None


def _keys(prefix: str, values: Any) -> set[str]:
    """Keys of a mapping and of those in it; none of what is no mapping."""
    each = values.items() if isinstance(values, dict) else ()
    return {f"{prefix}{key}" for key, _ in each}.union(*(_keys(f"{prefix}{key}.", value) for key, value in each))


def _mapping(value: str) -> Any:
    """What a section's option holds: a mapping, or the file of one."""
    with suppress(yaml.YAMLError):  # the parser refuses it
        values = parse_yaml(value)
        return read_yaml(Path(values)) if isinstance(values, str) else values


def _parsed(arguments: list[str], task: str) -> Any:
    parser = build_parser(task)
    try:
        return parser.parse_args(arguments)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, GatedRNNError):
            raise
        parser.error(f"an option cannot be read: {error}")  # what the library's YAML lets through: --words '!!int x'


def _dispatch(arguments: list[str]) -> int:
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ArgumentError("arguments", "must be UTF-8", ascii(argument), "Rename the file, or mend the text")
    given, cells, said = set[str](), dict[str, str](), shlex.join(["gatedrnn", *arguments])
    if any(argument.partition("=")[0] == "--import" for argument in arguments):
        arguments = _without_imports(arguments)
    if arguments[:1] == ["train"]:
        arguments, given, cells, _files = _given(_as_keys(arguments))  # files that are kept as long as `_files` is
        parsed = _parsed(arguments, _task(arguments))
    else:
        parsed = _parsed(arguments, "language_modelling")
    options: Namespace = parsed[parsed.command]
    options["given"], options["cells"] = given, cells
    options["said"] = said
    for name in ("out", "svg"):
        if options.get(name) is not None:
            check_folder(f"--{name}", options[name])
    from gatedrnn.cli import commands

    function = getattr(commands, parsed.command.replace("-", "_"))
    return function(options) or 0


if __name__ == "__main__":
    sys.exit(main())
