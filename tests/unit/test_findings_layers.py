"""Layers, cells, weights and files: what was found by reading the code, each once a crash or a silent error."""

import importlib
import os
import stat
import sys
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from gatedrnn import G2LSTM, GRU, LSTM, ONLSTM, RNN, Gates, Recurrent
from gatedrnn.cells import CELLS, Cell, Gate, Spec, lstm, own, rnn
from gatedrnn.compiler import Compiled, UnsupportedError
from gatedrnn.core.config import convert
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.core.files import write_folder, write_with
from gatedrnn.gates import SQUASHES
from gatedrnn.sequence import timing
from gatedrnn.weights.compressed import gather

kept = importlib.import_module("gatedrnn.compiler.kept")


# A cell's own definition.


def test_a_gate_of_a_cell_s_own_that_is_hard_stays_hard():
    spec = Spec(4, (Gate("a", 4, hard=True), Gate("b", 4), Gate("c", 4)), ("h",))
    made = spec.with_gates(Gates(straight_through=True, names=("b",)))
    assert [gate.hard for gate in made.gates] == [True, True, False]


def test_a_hard_gate_that_has_no_binary_values_is_refused():
    with pytest.raises(ArgumentError, match=r"^Gate\.hard: needs .*; got n with squash='tanh'\. Leave hard out\.$"):
        Spec(4, (Gate("n", 4, "tanh", hard=True),), ("h",))


@dataclass(eq=False)
class HashableStep:
    """An object that is called as a step."""

    slope: float = 1.0

    def __call__(self, spec, params, x_gates, h_gates, state):
        h = spec.squash("n", self.slope * (x_gates + h_gates))
        return (h,), {"n": h}


@dataclass
class Step(HashableStep):
    """The same, compared by value, and so without a hash."""


def make_spec(hidden_size):
    return Spec(hidden_size, (Gate("n", hidden_size, "tanh"),), ("h",))


def test_a_step_without_a_hash_is_refused_and_another_object_runs():
    with pytest.raises(ArgumentError, match=r"^Cell\.step: must be hashable; got Step\. Write a function"):
        Cell("mine", "mine", make_spec, Step())
    layer, x = Recurrent(Cell("mine", "mine", make_spec, HashableStep()), 3, 4), torch.randn(2, 3, 3)
    expected = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], expected)


def test_the_reset_of_a_gru_is_true_or_false():
    with pytest.raises(ArgumentError, match=r"^GRU\.reset_after: must be True or False; got 'False'\."):
        GRU(3, 4, reset_after="False")  # type: ignore[arg-type]


FAILING = """
from gatedrnn.cells import CELLS, Cell, lstm
CELLS.register("read_one", Cell("read_one", "one", lstm.make_spec, lstm.step))
{rest}
"""


@pytest.mark.parametrize(
    "rest",
    ["1 / 0", 'TWO, THREE = (Cell("read_two", title, lstm.make_spec, lstm.step) for title in "ab")'],
    ids=["error", "name-twice"],
)
def test_a_file_whose_import_failed_leaves_no_cell_and_can_be_mended(tmp_path, rest):
    before, file = set(CELLS), tmp_path / "mine.py"
    file.write_text(FAILING.format(rest=rest))
    for _ in range(2):  # the same error, not that a name is taken
        with pytest.raises((DataError, ArgumentError), match=r"ZeroDivisionError in line 4|got 'read_two'"):
            own.import_cells(file)
        assert set(CELLS) == before
    file.write_text(FAILING.format(rest=f"# without {rest}"))
    own.import_cells(file)
    assert set(CELLS) - before == {"read_one"}
    own._forget(file.resolve(), f"gatedrnn_own_{own._RUN[file.resolve()][:16]}", before, {*sys.modules})


@pytest.mark.parametrize("end", ["1 / 0", "raise SystemExit(3)"])
def test_a_failed_import_leaves_the_cells_of_other_files(tmp_path, monkeypatch, end):
    """Of a file and of an ordinary module that it imports: neither runs again."""
    before, text = set(CELLS), FAILING.format(rest="")
    theirs = text.replace("lstm.make_spec,", "lambda H: lstm.make_spec(H),")  # a function of its own
    (tmp_path / "theirs.py").write_text(theirs.replace("read_one", "read_theirs"))
    plain = f"plain_module_{len(end)}"
    (tmp_path / f"{plain}.py").write_text(theirs.replace("read_one", "read_plain"))
    lines = "from gatedrnn.cells.own import import_cells", "from pathlib import Path", f"import {plain}"
    file = tmp_path / "mine.py"
    file.write_text("\n".join((*lines, f"import_cells(Path({str(tmp_path / 'theirs.py')!r}))", text, end)))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((DataError, SystemExit)):
        own.import_cells(file)
    assert set(CELLS) - before == {"read_theirs", "read_plain"}
    own.import_cells(tmp_path / "theirs.py")
    with pytest.raises((DataError, SystemExit)):  # it runs again
        own.import_cells(file)
    theirs = (tmp_path / "theirs.py").resolve()
    own._forget(theirs, f"gatedrnn_own_{own._RUN[theirs][:16]}", before, {*sys.modules})
    assert set(CELLS) == before


def test_a_squash_of_one_s_own_runs_on_the_reference(monkeypatch):
    """Its name does not say what it computes, now or in a later process."""
    for name in ("mine", "exp"):
        monkeypatch.setitem(SQUASHES, name, lambda z, hard: torch.nn.functional.softplus(z))
        spec = Spec(4, (Gate("g", 4, name, memory=False), Gate("f", 4)), ("h",))
        told = kept.kept(lstm.step, spec)
        assert told == f"the squash '{name}' of its gate g is not one of the package's own"


# What compilation keeps on disk.


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (MemoryError("no room"), False),
        (ImportError("no library"), False),
        (UnsupportedError("the operation sort"), True),
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
        reason = kept.kept(step, spec)
        assert str(error) in reason and kept.kept(step, spec) == reason
    assert bool(list(tmp_path.rglob("cell-*.json"))) is lasting
    monkeypatch.setattr(kept, "_KNOWN", {})  # the next process
    found = kept.kept(step, spec)
    assert found == reason if lasting else isinstance(found, Compiled)


# What a layer takes and gives.


@pytest.mark.parametrize("how", [{}, {"proj_size": 2}, {"backend": "reference"}, {"dtype": torch.bfloat16}])
def test_final_states_may_be_detached_in_place_without_a_gradient(how):
    layer = LSTM(3, 4, **how)
    x = torch.randn(2, 3, 3, dtype=how.get("dtype"))
    with torch.no_grad():
        for found in (layer(x)[1], layer(x, lengths=[2, 1, 1])[1], layer(x, return_gates=True)[1]):
            for state in found:
                state.detach_()
    for state in layer.requires_grad_(False)(x)[1]:
        state.detach_()


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_final_states_with_a_gradient_may_be_detached_in_place(name, backend):
    layer = Recurrent(name, 3, 4, backend=backend)
    output, found = layer(torch.randn(2, 3, 3))
    states = found if isinstance(found, tuple) else (found,)
    assert all(state.requires_grad for state in states)
    for state in states:
        state.detach_()
        state[:, 0] = 0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), [*layer.parameters()]))


@pytest.mark.parametrize("extra", [(), (2, 3)], ids=["1-D", "3-D"])
def test_packed_data_of_another_rank_is_refused(extra):
    data = torch.randn(5, 3, *extra)
    text = rf"^LSTM\.input: must hold data of 2 dimensions \[tokens, D\]; got shape \[15{', 2, 3' if extra else ''}\]\."
    with pytest.raises(ArgumentError, match=text):
        LSTM(3, 4)(pack_padded_sequence(data, [5, 5, 5]))


THEIRS = {
    "cells.0.ih.0.weight": torch.zeros(20, 3),
    "cells.0.ih.0.bias": torch.zeros(20),
    "cells.0.hh.weight": torch.zeros(20, 4),
    "cells.0.hh.bias": torch.zeros(20),
}
OF_G2 = {"cell_0.weight_ih": torch.zeros(3, 16), "cell_0.weight_hh": torch.zeros(4, 16), "cell_0.bias": torch.zeros(16)}


@pytest.mark.parametrize("key", THEIRS)
def test_published_weights_of_another_rank_are_refused(key):
    wrong = THEIRS[key][0] if THEIRS[key].dim() > 1 else THEIRS[key][None]
    assert ONLSTM.load_ordered_neurons(THEIRS, 0).hidden_size == 4
    with pytest.raises(CheckpointError, match=rf"^ONLSTM\.load_ordered_neurons: {key} must be a tensor of .*; got \["):
        ONLSTM.load_ordered_neurons({**THEIRS, key: wrong}, 0)


@pytest.mark.parametrize("key", OF_G2)
def test_published_weights_of_g2_of_another_rank_are_refused(key):
    wrong = OF_G2[key][0] if OF_G2[key].dim() > 1 else OF_G2[key][None]
    assert G2LSTM.load_g2(OF_G2).hidden_size == 4
    with pytest.raises(CheckpointError, match=rf"^G2LSTM\.load_g2: {key} must be a tensor of .*; got \["):
        G2LSTM.load_g2({**OF_G2, key: wrong})


def test_a_rate_of_dropconnect_is_a_probability():
    with pytest.raises(ArgumentError, match=r"dropconnect: must be a probability between 0 and 1; got 1\.5"):
        ONLSTM.load_ordered_neurons(THEIRS, 0, dropconnect=1.5)


def test_a_projection_belongs_to_the_size_that_a_time_is_kept_for():
    def size(proj_size):
        layer = RNN(3, 8, proj_size=proj_size)
        state = (torch.zeros(2, proj_size or 8),)
        return timing._size(layer.request(0, torch.randn(4, 2, 3), state))

    assert len({size(each) for each in (0, 2, 3)}) == 3 and " J=2 " in size(2)


def test_the_names_of_an_rnn_s_squash_are_a_tuple():
    assert rnn.NONLINEARITIES == ("tanh", "relu", "sigmoid")
    assert [rnn.make_spec(2, nonlinearity=each).gates[0].squash for each in rnn.NONLINEARITIES] == [*rnn.NONLINEARITIES]


# Files and values.


def test_codes_of_a_vector_are_refused():
    saved = {"X.bias/0-4/int8/codes": torch.zeros(4, dtype=torch.int8)}
    with pytest.raises(ArgumentError, match=r"^X\.bias: must be a matrix to have a small form; got shape \[4\]\."):
        gather(saved, {"X.bias": torch.Size([4])})


def test_files_and_folders_have_the_rights_of_others_and_no_umask_is_set(tmp_path, monkeypatch):
    def replaced(path):
        path.unlink()
        path.write_text("a")
        path.chmod(0o600)

    (tmp_path / "plain").touch()
    (tmp_path / "room").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
    write_with(tmp_path / "file", replaced)
    write_folder(tmp_path / "folder", lambda path: path.chmod(0o700))
    for ours, theirs in (("file", "plain"), ("folder", "room")):
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (ours, theirs)]
        assert modes[0] == modes[1], ours


def test_an_integer_that_no_float_holds_is_refused():
    assert convert(float, 10**300, "a.b") == 1e300
    with pytest.raises(ArgumentError, match=r"^a\.b: must fit a floating-point number; got an integer of 1329 bits\."):
        convert(float, 10**400, "a.b")
