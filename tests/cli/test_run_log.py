"""A run's log: a damaged line is named, and which epoch is the best."""

import json

import pytest
from terminal import copy_of, fails

from gatedrnn.core.errors import DataError
from gatedrnn.training.run import METRICS_FILE, best_record, read_metrics


@pytest.mark.parametrize("damage", ["{", "[1]", "7", "", "\ud800", "[" * 9999])
def test_a_damaged_log_is_named_with_its_line(work, tmp_path, damage):
    run = copy_of(work / "run", tmp_path / "run")
    with (run / METRICS_FILE).open("ab") as stream:
        stream.write(damage.encode("utf-8", "surrogatepass") + b"\n")
    for read in (read_metrics, best_record):
        with pytest.raises(DataError, match=rf"{METRICS_FILE}:2: must be an epoch's record in JSON; got '.*Restore"):
            read(run)
    pytest.importorskip("transformers")
    line = fails("export", run, "--to", "hf", "--out", tmp_path / "hf")
    assert f"{METRICS_FILE}:2: must be an epoch's record in JSON" in line and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([], None),
        ([None], None),
        ([float("nan"), float("inf")], None),
        ([3.0, float("nan"), 2.0, 2.5], 3),
        (["x", 4], 2),
    ],
)
def test_the_best_epoch_is_the_one_of_the_lowest_finite_perplexity(tmp_path, values, best):
    assert best_record(tmp_path) is None
    lines = [json.dumps({"epoch": k, "valid_perplexity": value}) for k, value in enumerate(values, 1)]
    (tmp_path / METRICS_FILE).write_text("\n".join([*lines, '{"epoch": 9}']))
    found = best_record(tmp_path)
    assert (found and found["epoch"]) == best


def test_the_epoch_that_is_kept_is_the_last_of_the_best(tmp_path):
    """A student keeps the weights of its best trees, whose perplexity may be worse than an earlier epoch's."""
    lines = [{"epoch": 1, "valid_perplexity": 95.0, "best": True}, {"epoch": 2, "valid_perplexity": 97.0, "best": True}]
    lines.append({"epoch": 3, "valid_perplexity": 94.0, "best": False})
    (tmp_path / METRICS_FILE).write_text("\n".join(map(json.dumps, lines)))
    found = best_record(tmp_path)
    assert found and found["epoch"] == 2
