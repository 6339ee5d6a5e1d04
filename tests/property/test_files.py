"""A few of the cases of `fuzz_files`; thousands by its own command."""

from random import Random

import pytest

from . import fuzz_tasks
from .damage import damaged
from .fuzz_files import fuzz, interrupted, prepare


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatedrnn.data.text._LONGEST_LINE", 1 << 20)  # what the bombs unpack to is then small
        prepare(folder, bomb=2 << 20)
        fuzz_tasks.prepare(folder)
        yield folder


@pytest.mark.parametrize("start", [1, 2, 3, -2])
def test_damaged_files_and_odd_options_end_in_success_or_one_line(base, start, monkeypatch):
    monkeypatch.setattr("gatedrnn.plots.trees.KINDS", ("svg",))  # figures take most of the time
    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", interrupted)
    assert fuzz(7, range(start * 25, start * 25 + 16), base) == {}


def test_a_seed_draws_the_same_damage_again():
    raw = b"".join(b"the pilot sleeps %d\n" % k for k in range(20))
    for suffix in (".txt", ".json", ".jsonl", ".yaml", ".safetensors", ".trees"):
        one, two = (damaged(Random(5), raw, suffix) for _ in range(2))
        assert one == two
