"""A file of cells whose import fails: it leaves none of its cells and all of other files', and can be mended."""

import sys

import pytest

from gatedrnn.cells import CELLS, own
from gatedrnn.core.errors import ArgumentError, DataError

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
