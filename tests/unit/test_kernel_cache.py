"""What compilation keeps on disk and in the process, and what is shared by layers of other sizes."""

import importlib

import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.cells import lstm
from gatedrnn.compiler.cell import Compiled
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.core.errors import DataError
from gatedrnn.sequence.backends.cpu.compile import build
from gatedrnn.sequence.backends.cpu.runtime.target import best

kept = importlib.import_module("gatedrnn.compiler.kept")


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (MemoryError("no room"), False),
        (ImportError("no library"), False),
        (UnsupportedError("the operation sort"), True),
        (UnsupportedError("the operation native_layer_norm, of which PyTorch's private names know more"), False),
    ],
)
def test_only_a_reason_that_lasts_is_kept_on_disk(tmp_path, monkeypatch, error, lasting):
    def fail(step, spec):
        raise error

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "_KNOWN", {})
    step, spec = lstm.step, lstm.make_spec(4)
    with monkeypatch.context() as within:
        within.setattr(kept, "compile_cell", fail)
        within.setattr(kept, "all_decompositions", lambda: "private" not in str(error))
        reason = kept.kept(step, spec)
        assert str(error) in reason and kept.kept(step, spec) == reason
    assert bool(list(tmp_path.rglob("cell-*.json"))) is lasting
    monkeypatch.setattr(kept, "_KNOWN", {})  # the next process
    found = kept.kept(step, spec)
    assert found == reason if lasting else isinstance(found, Compiled)


@pytest.mark.filterwarnings("ignore:gatedrnn. kernels cannot be kept")
@pytest.mark.parametrize("nowhere", [True, False], ids=["no folder", "no writable folder"])
def test_what_cannot_be_kept_is_compiled_once_a_process(tmp_path, monkeypatch, nowhere):
    (tmp_path / "file").write_text("")

    def folder():
        if nowhere:
            raise DataError("cache folder", "the user must have a home folder", "none", "Set HOME")
        return tmp_path / "file"

    made = []
    monkeypatch.setattr(build, "cache_folder", folder)
    monkeypatch.setattr(build, "_UNKEPT", {}, raising=False)
    for name in ("loop", "rows", "loop"):
        assert build.cached(name, best(), lambda name=name: made.append(name) or name.encode()) == name.encode()
    assert made == ["loop", "rows"]


def test_layers_of_other_sizes_share_what_is_loaded():
    def train(hidden):
        Recurrent("lstm", 3, hidden, backend="cpu")(torch.randn(4, 2, 3))[0].sum().backward()
        return len(build._LOADED)

    assert train(5) == train(6)
