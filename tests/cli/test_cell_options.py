"""Options of a cell from the command line, from files, and as earlier versions wrote them."""

from dataclasses import replace

import pytest
import yaml
from terminal import copy_of, fails, works

from gatedrnn import CELLS

WAYS = {
    "keys": ["--model.options.chunk_size", 2, "--model.options.split_points=free"],
    "mapping": ["--model.options={chunk_size: 2, split_points: free}"],
    "section": ["--model", "{cell: onlstm, options: {chunk_size: 2, split_points: free}}"],
    "old keys": ["--model.chunk_size", 2, "--model.split_points=free"],
    "old section": ["--model={cell: onlstm, chunk_size: 2}", "--model.options.split_points", "free"],
    "old file": ["--config", "model: {chunk_size: 2, split_points: paper}", "--model.split_points", "free"],
    "file": ["--config", "model: {options: {chunk_size: 4, split_points: free}}", "--model.options.chunk_size", 2],
    "old section's file": ["--model", "chunk_size: 2\nsplit_points: free"],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_a_cell_s_options(work, tmp_path, way):
    (tmp_path / "a.yaml").write_text(str(WAYS[way][1]) if "file" in way else "")
    options = [WAYS[way][0], tmp_path / "a.yaml", *WAYS[way][2:]] if "file" in way else WAYS[way]
    small = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--data", work / "text"]
    works("train", "--training.minutes", "1e-5", *options, *small, "--out", tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]
    assert written["options"] == {"chunk_size": 2, "split_points": "free"} and "chunk_size" not in written
    again = ["train", "--out", tmp_path / "run", "--resume", "--training.minutes", "1e-5"]
    works(*again, *WAYS["keys"][:2])
    rule = "model.options.chunk_size: must be as in the run; got 4, and 2 in the run"
    assert rule in fails(*again, "--model.options.chunk_size", 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.options.chunk_sise", 2], "model.options.chunk_sise: unknown key. Did you mean 'chunk_size'?"),
        (["--model.options={chunk.size: 2}"], "model.options.chunk.size: unknown key. Did you mean 'chunk_size'?"),
        (["--model.options.chunk_size", "two"], "model.options.chunk_size: must be an integer; got 'two'"),
        (["--model.options.chunk_size.x", 2], "model.options.chunk_size: must be an integer; got {'x': "),
        (["--model.options.split_points", 1], "model.options.split_points: must be text; got 1"),
        (["--model={chunk_size: 2, options: {chunk_size: 4}}"], "must equal model.options.chunk_size where both are"),
    ],
)
def test_an_option_that_the_cell_cannot_have_is_one_line(tmp_path, options, message):
    assert message in fails("train", "--out", tmp_path / "run", *options)


def test_what_a_later_file_sets_is_for_the_cell_of_an_earlier_one(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {cell: gru}")
    (tmp_path / "b.yaml").write_text("model: {options: {chunk_size: 4}}")
    files = ["--config", tmp_path / "a.yaml", "--config", tmp_path / "b.yaml"]
    for given in (files, files[2:] + files[:2]):
        assert "chunk_size" in fails("train", "--out", tmp_path / "run", *given)
    (tmp_path / "none.yaml").write_text("# nothing yet\n")
    assert "chunk_size" in fails("train", "--out", tmp_path / "run", "--config", tmp_path / "none.yaml", *files)


def test_a_registered_cell_s_own_options_need_no_other_edit(work, tmp_path, monkeypatch):
    scaled = replace(CELLS["lstm"], name="scaled", make_spec=scaled_spec, options={"scale": 1.0, "mode": "a"})
    monkeypatch.setitem(CELLS._entries, "scaled", scaled)
    short = ["--data", work / "text", "--model.embedding_size", 8, "--model.hidden_sizes", "[8]"]
    options = ["--model.cell", "scaled", "--model.options.scale", 2, "--training.minutes", "1e-5"]
    works("train", *short, *options, "--out", tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["options"]
    assert written == {"scale": 2.0, "mode": "a"}
    works("evaluate", tmp_path / "run", "--data", work / "text" / "test.txt")
    rule = "model.options.scale: applies only to scaled; got 2 with cell=lstm"
    assert rule in fails("train", *short, *options, "--model.cell", "lstm", "--out", tmp_path / "b")


def scaled_spec(hidden_size, *, scale=1.0, mode="a"):
    return CELLS["lstm"].make_spec(hidden_size)


def test_a_run_with_the_old_keys_is_read_and_rewritten_when_it_goes_on(work, tmp_path):
    run, was = copy_of(work / "run", tmp_path / "old"), (work / "run" / "config.yaml").read_text()
    config = yaml.safe_load(was)
    config["model"] |= config["model"].pop("options") | {"peephole": "diagonal", "reset_after": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    works("accept", run)
    works("evaluate", run, "--data", work / "text" / "test.txt")
    assert (run / "config.yaml").read_text() == yaml.safe_dump(config)
    works("train", "--out", run, "--resume")
    assert (run / "config.yaml").read_text() == was
    works("evaluate", run, "--data", work / "text" / "test.txt")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("input_cap", "true", "model.options.input_cap: must be as in the run; got True, and False in the run"),
        ("chunk_size", 3, "model.options.chunk_size: applies only to onlstm; got 3 with cell=lstm"),
    ],
)
def test_an_option_is_read_by_the_cell_of_the_run_that_goes_on(work, option, value, said):
    assert said in fails("train", "--out", work / "lstm", "--resume", f"--model.options.{option}", value)
