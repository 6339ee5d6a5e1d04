"""What commands say at the edges."""

from dataclasses import replace

import pytest
from terminal import call, fails

from gatedrnn.training.run import load_run


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


@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
def test_an_empty_line_counts_against_the_limits_of_a_server(work, empty_lines):
    pytest.importorskip("fastapi")
    from gatedrnn.serve.http import RefusedError
    from gatedrnn.serve.limits import Limits
    from gatedrnn.serve.readings import parsing, reading
    from gatedrnn.serve.schema import ParseBody, SurprisalBody

    run = load_run(work / "run")
    run = replace(run, config=replace(run.config, data=replace(run.config.data, empty_lines=empty_lines)))
    text, limits = "the pilot\n" + "\n" * 20, Limits(prompt_tokens=20)
    assert len(list(parsing(run, ParseBody(text=text), Limits())())) == 21
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 22 or more"):
        parsing(run, ParseBody(text=text), limits)
    if empty_lines == "skip":
        assert len(list(reading(run, SurprisalBody(text=text), limits)())) == 1
        return
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 21 or more"):
        reading(run, SurprisalBody(text=text), limits)
