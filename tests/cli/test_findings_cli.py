"""What commands say at the edges."""

import pytest
from terminal import call, fails


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("input_cap", "true", "model.options.input_cap: must be as in the run; got True, and False in the run"),
        ("chunk_size", 3, "model.options.chunk_size: applies only to onlstm; got 3 with cell=lstm"),
    ],
)
def test_an_option_is_read_by_the_cell_of_the_run_that_goes_on(work, option, value, said):
    assert said in fails("train", "--out", work / "lstm", "--resume", f"--model.options.{option}", value)


def test_a_setting_without_use_is_refused_before_anything_is_said_or_written(work, tmp_path):
    out = tmp_path / "out"
    given = ("--task", "grammar", "--data", work / "text", "--training.sequence_length", 12, "--out", out)
    code, said, error = call("train", *given)
    assert (code, said) == (1, "") and not out.exists()
    assert "training.sequence_length: has no effect for grammar; got 12" in error
