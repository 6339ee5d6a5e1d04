"""`gatedrnn COMMAND`: one parser, one place where errors become one line and an exit code (0 done, 1 error, 2 usage)."""

import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace  # pyright: ignore[reportPrivateImportUsage]

import gatedrnn
from gatedrnn.cli.options import COMMANDS
from gatedrnn.core.checks import nearest
from gatedrnn.core.errors import GatedRNNError
from gatedrnn.core.files import read_yaml


class _Parser(ArgumentParser):
    """Reports a usage error in one line, an unknown option with the nearest known one."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if isinstance(ex, GatedRNNError):
            raise ex
        flat = " ".join(str(message).split())
        unknown = re.search(r"unrecognized arguments: (--[\w.-]+)", flat)
        if unknown:
            flat += f". {nearest(unknown[1], self._option_string_actions)}"
        print(f"gatedrnn: usage: {flat} (see gatedrnn --help)", file=sys.stderr)
        sys.exit(2)


def build_parser() -> ArgumentParser:
    """The parser of every command."""
    parser = _Parser(
        prog="gatedrnn",
        description="Gated recurrent networks: train them on plain text, read trees off their gates.",
        version=gatedrnn.__version__,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", required=True)
    for name, (fill, text) in COMMANDS.items():
        child = _Parser(description=f"gatedrnn {name}: {text}.")
        fill(child)
        child.add_argument("--json", action="store_true", help="machine-readable output")
        commands.add_subcommand(name, child, help=text)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns: 0, or 1 on an error; usage errors exit with 2."""
    given = sys.argv[1:] if arguments is None else arguments
    code = report_errors(lambda: _dispatch(given))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # gloo's threads may deadlock or abort while the interpreter ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def report_errors(run: Callable[[], int]) -> int:
    """What `run` returns; an error of ours as one line, and 1."""
    try:
        return run()
    except GatedRNNError as error:
        print(f"gatedrnn: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("gatedrnn: interrupted", file=sys.stderr)
    except BrokenPipeError:
        sys.stderr.close()
    return 1


def _data_folder(arguments: list[str]) -> list[str]:
    """`--data DIR` written as the configuration key it sets."""
    return [f"--data.folder{a[6:]}" if a == "--data" or a.startswith("--data=") else a for a in arguments]


def _given(arguments: list[str]) -> set[str]:
    """The configuration's keys that the command line sets, those in `--config` too.

    Reads that file strictly, so that a wrong key is named with the nearest known one.
    """
    from gatedrnn.training.config import read_run_config

    keys = set()
    for k, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        value = value or (arguments[k + 1] if k + 1 < len(arguments) else "")
        if name == "--config":
            path = Path(value)
            read_run_config(path)
            sections = read_yaml(path) or {}
            keys |= {f"{section}.{key}" for section, values in sections.items() for key in values or ()}
            keys |= {f"model.gates.{key}" for key in (sections.get("model") or {}).get("gates") or ()}
        elif name.startswith(("--data.", "--model.", "--training.")):
            keys.add(name[2:])
        if name == "--model.gates":
            with suppress(yaml.YAMLError):  # the parser refuses it
                gates = yaml.safe_load(value)
                keys |= {f"model.gates.{key}" for key in gates} if isinstance(gates, dict) else set()
    return keys


def _dispatch(arguments: list[str]) -> int:
    given: set[str] = set()
    if arguments[:1] == ["train"]:
        arguments = _data_folder(arguments)
        given = _given(arguments)
    parsed: Any = build_parser().parse_args(arguments)
    options: Namespace = parsed[parsed.command]
    options["given"] = given
    options["said"] = shlex.join(["gatedrnn", *arguments])
    from gatedrnn.cli import commands

    function = getattr(commands, parsed.command.replace("-", "_"))
    return function(options) or 0


if __name__ == "__main__":
    sys.exit(main())
