"""The folder of `train --out`: what another training has begun stays, and a training that fails leaves none."""

from contextlib import ExitStack

from terminal import fails

from gatedrnn.core.errors import DataError
from gatedrnn.training.run import locked


def test_the_second_of_two_trainings_leaves_what_the_first_has_begun(work, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with ExitStack() as first:

        def second(*_):
            out.mkdir()
            first.enter_context(locked(out))
            (out / "config.yaml").write_text("the first one's")
            raise DataError(str(out), "must not be in training already", "a run that another process trains", "Wait")

        monkeypatch.setattr("gatedrnn.cli.commands.train._train", second)
        assert "must not be in training already" in fails("train", "--data", work / "text", "--out", out)
        assert (out / "config.yaml").read_text() == "the first one's"


def test_a_training_that_fails_alone_leaves_no_folder(work, tmp_path, monkeypatch):
    def failing(config, out, *_):
        (out / "text").mkdir(parents=True)
        raise DataError("text", "must be long", "a short one", "Write more")

    monkeypatch.setattr("gatedrnn.cli.commands.train._train", failing)
    fails("train", "--data", work / "text", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_training_that_fails_makes_no_folder_above(tmp_path):
    fails("train", "--data", tmp_path / "none", "--out", tmp_path / "x" / "y" / "z")
    assert not (tmp_path / "x").exists()
