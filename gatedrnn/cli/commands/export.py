"""`gatedrnn export`: a run in the form that other programs load."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import required, run_place
from gatedrnn.core.checks import one_of
from gatedrnn.training.run import load_run

_FORMS = {"hf": "gatedrnn.hf", "onnx": "gatedrnn.export"}
"""What each is written by: a module with `export_run(run, folder)`, imported when it is asked for."""


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which run, in which form, to where."""

    run: str = run_place()
    to: str = required(
        "hf: a folder that Hugging Face transformers loads; onnx: graphs of a step and of a sequence", "FORM"
    )
    out: str = required("folder to write, new or empty", "DIR")


def run(options: Options) -> dict[str, Any]:
    """The folder and its files. Raises: ArgumentError: a library is missing. DataError: the folder cannot be written."""
    form = importlib.import_module(_FORMS[one_of("--to", options.to, _FORMS)])
    out = Path(options.out)
    form.export_run(load_run(options.run, None), out)
    sizes = {path.relative_to(out).as_posix(): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    return {"run": options.run, "to": options.to, "out": options.out, "bytes": sizes}


def show(found: dict[str, Any], options: Options) -> None:
    """A line a file."""
    print(f"{found['out']}:")
    for name, size in found["bytes"].items():
        print(f"{size:>14,}  {name}")
