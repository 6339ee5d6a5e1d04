"""Scripts run as `python FILE …` would run them, but in this process, which has imported PyTorch already."""

import contextlib
import importlib.util
import io
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_script(path: Path, *arguments: object) -> tuple[int, str, str]:
    """Run a script from the repository's root as the program it is.

    Args:
        path: of the script.
        arguments: of its command line.

    Returns: exit code, standard output, standard error.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        patch.chdir(ROOT)
        try:
            runpy.run_path(str(path), run_name="__main__")
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, out.getvalue(), err.getvalue()


def benchmark(name):
    """A benchmark as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
