"""`evaluate` and `generate` with all their options, through `main`, on one tiny run."""

import pytest
from terminal import fails, record, works

from gatedrnn.training.run import Run

WINDOWED = ["--cache", "--cache-window", "50", "--cache-theta", "0.3", "--cache-lambda", "0.2"]
LEARNING = ["--dynamic", "--dynamic-rate", "0.001", "--dynamic-decay", "0.01", "--dynamic-segment", "7"]


def evaluated(work, *options):
    return record("evaluate", work / "run", "--data", work / "text" / "test.txt", *options)


# ---------------------------------------------------------------- evaluate


def test_evaluate_says_how(work):
    plain = evaluated(work)
    assert list(plain) == ["loss_nats", "perplexity", "tokens"]
    reset = evaluated(work, "--reset")
    assert reset["state"] == "reset" and reset["tokens"] == plain["tokens"]
    assert reset["perplexity"] != pytest.approx(plain["perplexity"], rel=1e-6)
    cached = evaluated(work, *WINDOWED)
    assert cached["cache"] == {"window": 50, "theta": 0.3, "lambda": 0.2} and "dynamic" not in cached
    learning = evaluated(work, *LEARNING)
    assert learning["dynamic"] == {"rate": 0.001, "decay": 0.01, "segment": 7} and "cache" not in learning
    both = evaluated(work, *WINDOWED, *LEARNING)
    assert both["cache"] == cached["cache"] and both["dynamic"] == learning["dynamic"]
    found = [what["perplexity"] for what in (plain, reset, cached, learning, both)]
    assert len(set(found)) == 5 and both["perplexity"] < plain["perplexity"]


def test_evaluate_tells_it_in_words_too(work):
    text = ["evaluate", work / "run", "--data", work / "text" / "test.txt"]
    assert "\nstate carried, batch size 1; 0 tokens" in works(*text)
    assert "\nstate reset at each sentence; 0 tokens" in works(*text, "--reset")
    out = works(*text, "--batch-size", 2, *WINDOWED, *LEARNING)
    assert (
        "state carried, batch size 2; continuous cache (window 50, theta 0.3, lambda 0.2); dynamic evaluation (" in out
    )
    assert "(rate 0.001, decay 0.01, segment 7); 0 tokens" in out


def test_the_defaults_are_those_of_the_help(work):
    found = evaluated(work, "--cache", "--dynamic")
    out = " ".join(works("evaluate", "--help").split())
    for name in ("cache", "dynamic"):
        for key, value in found[name].items():
            line = out[out.rindex(f"--{name}-{key} ") :]
            assert line[line.index("[") + 1 : line.index("]")] == f"{value:g}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reset", "--cache"], "evaluate.reset: cannot be combined with a cache or dynamic evaluation"),
        (["--reset", "--dynamic"], "evaluate.reset: cannot be combined with a cache or dynamic evaluation"),
        (["--cache-window", "5"], "--cache-window: needs --cache; got none. Add --cache"),
        (["--cache", "--dynamic-rate", "5"], "--dynamic-rate: needs --dynamic; got none. Add --dynamic"),
        (["--cache", "--cache-window", "0"], "cache.window: must be a positive integer; got 0"),
        (["--cache", "--cache-lambda", "1"], "cache.lambda: must lie in [0, 1); got 1"),
        (["--dynamic", "--dynamic-rate", "-1"], "dynamic.rate: must lie in [0, 1]; got -1"),
        (["--dynamic", "--dynamic-decay", "2"], "dynamic.decay: must be a probability between 0 and 1; got 2"),
        (["--dynamic", "--dynamic-segment", "0"], "dynamic.segment: must be a positive integer; got 0"),
    ],
)
def test_evaluate_refuses(work, options, message):
    assert message in fails("evaluate", work / "run", "--data", work / "text" / "test.txt", *options)


def test_a_temperature_is_found_on_a_text_that_is_there(work, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "text_folder", tmp_path / "gone")
    options = ["--data", work / "text" / "test.txt", "--temperature", "auto"]
    told = "gone: must hold the run's own validation text, for --temperature auto; got no such folder"
    assert told in fails("evaluate", work / "run", *options)


def test_a_temperature_of_one_is_none(work):
    assert works("evaluate", work / "run", "--reset", "--temperature", "1.00", "--json")


def test_a_run_is_evaluated_with_a_window_that_fits(work):
    assert "cache.window: must be at most" in fails("evaluate", work / "run", "--cache", "--cache-window", 10**20)
    assert "perplexity" in works("evaluate", work / "run", "--data", work / "text" / "valid.txt", "--json")


# ---------------------------------------------------------------- generate


def test_generate_with_filters(work):
    def words(*options):
        return record("generate", work / "run", "--words", 30, *options)["text"]

    assert words("--top-k", 1, "--seed", 1) == words("--top-k", 1, "--seed", 2) == words("--top-p", 1e-9)
    assert words("--top-k", 1) == words("--temperature", 1e-9)
    assert words("--top-p", 1.0) == words() != words("--top-k", 2)
    both = ["--top-k", 5, "--top-p", 0.9, "--temperature", 0.8, "--prompt", "the pilot"]
    assert words(*both) == words(*both) != words(*both, "--seed", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-k", "0"], "generate.top_k: must be a positive integer; got 0"),
        (["--top-p", "0"], "generate.top_p: must lie in (0, 1]; got 0"),
        (["--top-p", "1.1"], "generate.top_p: must lie in (0, 1]; got 1.1"),
        (["--seed", "-1"], "--seed: must lie in 0…2^63 − 1; got -1"),
        (["--seed", str(1 << 63)], "--seed: must lie in"),
    ],
)
def test_generate_refuses(work, options, message):
    assert message in fails("generate", work / "run", *options)
