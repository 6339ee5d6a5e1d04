"""The perplexity that `benchmarks/criteria.py` reads of a run."""

import json
from types import SimpleNamespace

from scripts import benchmark


def test_the_perplexity_of_a_run_is_that_of_the_weights_it_holds(tmp_path):
    lines = [{"valid_perplexity": value, "best": best} for value, best in ((9.0, True), (7.0, True), (8.0, False))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert benchmark("criteria").perplexity(SimpleNamespace(folder=tmp_path)) == 7.0
