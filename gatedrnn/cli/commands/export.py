"""`gatedrnn export`: a run in the form that other programs load."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, required, run_place
from gatedrnn.cli.output import as_typed
from gatedrnn.cli.text import check_recurrent
from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError
from gatedrnn.training.run import load_run

_FORMS = {"hf": "gatedrnn.hf", "onnx": "gatedrnn.export", "web": "gatedrnn.export.web"}
"""What each is written by: a module with `export_run(run, folder, …)`, imported when it is asked for."""
_OPTIONS = {"int8": ("onnx", "web"), "runtime": ("web",)}
"""Which forms read an option."""


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which run, in which form, to where."""

    run: str = run_place()
    to: str = required(
        "hf: a folder that Hugging Face transformers loads; onnx: graphs of one step and of a whole sequence; "
        "web: a static page that computes in the browser",
        "FORM",
    )
    out: str = required("folder to write, new or empty", "DIR")
    int8: bool = option(False, "onnx, web: weights as int8, a quarter of the bytes with a small error")
    runtime: str | None = option(None, "web: folder or .tgz of onnxruntime-web [fetched from npm once]", "PATH")


def run(options: Options) -> dict[str, Any]:
    """The folder and its files.

    Raises: ArgumentError: a library is missing, or an option is of no use for this form. DataError: the folder cannot be written.
    """
    form = importlib.import_module(_FORMS[one_of("--to", options.to, _FORMS)])
    how = {name: value for name in _OPTIONS if (value := getattr(options, name)) not in (False, None)}
    for name in how:
        if options.to not in _OPTIONS[name]:
            rule = f"needs --to {' or '.join(_OPTIONS[name])}"
            raise ArgumentError(f"--{name}", rule, options.to, f"Leave --{name} out")
    out = Path(options.out)
    run = load_run(options.run, None)
    check_recurrent("export", run)
    form.export_run(run, out, **how)
    sizes = {path.relative_to(out).as_posix(): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    return {"run": options.run, "to": options.to, "out": options.out, "bytes": sizes}


def show(found: dict[str, Any], options: Options) -> None:
    """A line a file."""
    print(f"{found['out']}:")
    for name, size in found["bytes"].items():
        print(f"{size:>14,}  {name}")
    if options.to == "web":
        folder = as_typed(found["out"])
        print(f"open it through a server: python -m http.server --bind 127.0.0.1 --directory {folder}")
