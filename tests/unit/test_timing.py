"""Which backend `auto` takes where several can be timed: here by a made-up clock on a CPU."""

import json

import pytest
import torch

from gatedrnn import GRU, LSTM, ONLSTM
from gatedrnn.core.files import cache_folder
from gatedrnn.sequence import BACKENDS, dispatch, timing


class Clock:
    """Seconds by backend; runs each once, and keeps their names."""

    def __init__(self, **seconds):
        self.seconds, self.ran, self.now = seconds, [], None

    def __call__(self, run):
        self.now = None
        run()
        self.ran.append(self.now)
        return self.seconds[self.now]


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A clock on which the `torch` backend is faster than the kernels, a cache of its own, and every device measurable."""
    clock = Clock(cpu=2.0, torch=1.0)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(dispatch, "measurable", lambda device: True)
    monkeypatch.setattr(timing, "_seconds", clock)
    for name, backend in BACKENDS.items():
        monkeypatch.setattr(backend, "run", noted(clock, name, backend.run), raising=True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    timing.forget()
    yield clock
    timing.forget()


def noted(clock, name, run):
    def spy(request):
        clock.now = name
        return run(request)

    return spy


def ran(clock, layer, *shape):
    layer(torch.ones(*shape))
    return clock.now


pytestmark = pytest.mark.skipif(
    BACKENDS["cpu"].supports(LSTM(2, 2).request(0, torch.ones(1, 1, 2), (torch.zeros(1, 2),) * 2)) is not None,
    reason="the cpu backend cannot run here",
)


def test_the_fastest_is_taken_and_each_size_is_timed_once(clock):
    layer = LSTM(3, 4)
    assert ran(clock, layer, 5, 2, 3) == "torch" and clock.ran == ["cpu", "torch"]
    assert ran(clock, layer, 8, 2, 3) == "torch" and len(clock.ran) == 2  # 5 and 8 steps are one size
    clock.seconds["torch"] = 3.0
    assert ran(clock, layer, 9, 2, 3) == "cpu" and len(clock.ran) == 4
    with torch.no_grad():
        assert ran(clock, layer, 9, 2, 3) == "cpu" and len(clock.ran) == 6  # inference is timed by itself
    assert ran(clock, layer, 5, 2, 3) == "torch" and len(clock.ran) == 6


def test_a_later_process_reads_what_was_measured(clock):
    layer = GRU(3, 4)
    ran(clock, layer, 5, 2, 3)
    (size,) = json.loads((cache_folder() / "backends.json").read_text()).items()
    assert "gru_after D=3 H=4 B<=2 T<=8 float32 training" in size[0] and size[1] == {"cpu": 2.0, "torch": 1.0}
    timing.forget()
    assert ran(clock, layer, 5, 2, 3) == "torch" and len(clock.ran) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', '{"a": {"cpu": "fast"}}', "\udcff"])
def test_a_damaged_table_is_measured_anew(clock, content):
    path = cache_folder() / "backends.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert ran(clock, LSTM(3, 4), 5, 2, 3) == "torch" and len(clock.ran) == 2
    assert len(json.loads(path.read_text())) == 1


def test_a_file_where_the_folder_should_be_costs_only_the_table(clock, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(timing, "_path", lambda: tmp_path / "taken" / "backends.json")
    assert [ran(clock, LSTM(3, 4), 5, 2, 3) for _ in range(2)] == ["torch", "torch"] and len(clock.ran) == 2


def test_what_fails_is_not_taken(clock, monkeypatch):
    def full(request):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(BACKENDS["torch"], "run", full)
    assert ran(clock, LSTM(3, 4), 5, 2, 3) == "cpu"
    (row,) = json.loads((cache_folder() / "backends.json").read_text()).values()
    assert row == {"cpu": 2.0, "torch": None}
    monkeypatch.setattr(BACKENDS["cpu"], "run", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        LSTM(3, 5)(torch.ones(5, 2, 3))
    assert len(json.loads((cache_folder() / "backends.json").read_text())) == 1  # a size that nothing ran is not kept


def test_timing_leaves_gradients_states_and_random_numbers_alone(clock):
    layer, x = LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    states = tuple(torch.randn(1, 2, 4, requires_grad=True) for _ in range(2))
    before = torch.get_rng_state()
    output = layer(x, states)[0]
    assert len(clock.ran) == 2 and torch.equal(torch.get_rng_state(), before)
    assert all(tensor.grad is None for tensor in (x, *states, *layer.parameters()))
    output.sum().backward()
    expected = LSTM(3, 4, backend="reference")
    expected.load_state_dict(layer.state_dict())
    grad, x.grad = x.grad, None
    expected(x, states)[0].sum().backward()
    torch.testing.assert_close(grad, x.grad)


def test_one_that_is_alone_is_not_timed(clock):
    assert ran(clock, ONLSTM(3, 4), 5, 2, 3) == "cpu"  # beside the reference, which never counts
    assert ran(clock, LSTM(3, 4, backend="cpu"), 5, 2, 3) == "cpu" and not clock.ran


def test_a_cpu_is_never_timed(monkeypatch):
    monkeypatch.setattr(timing, "_seconds", lambda run: pytest.fail("a CPU was timed"))
    LSTM(3, 4)(torch.ones(5, 2, 3))
    assert not timing.measurable(torch.device("cpu"))
