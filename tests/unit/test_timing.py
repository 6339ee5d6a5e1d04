"""Which backend `auto` takes where several can be timed: here by a made-up clock on a CPU."""

import json
import threading

import pytest
import torch
from filelock import FileLock, Timeout
from torch.utils.checkpoint import checkpoint

import gatedrnn
from gatedrnn import GRU, LSTM, ONLSTM, RNN
from gatedrnn.core.files import cache_folder
from gatedrnn.sequence import BACKENDS, timing


class Clock:
    """Seconds by backend; runs each once, and keeps their names."""

    def __init__(self, **seconds):
        self.seconds, self.ran, self.now = seconds, [], None

    def __call__(self, run, device):
        self.now = None
        run()
        self.ran.append(self.now)
        return self.seconds[self.now]


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A clock on which the `torch` backend is faster than the kernels, a table of its own, and every device measurable."""
    clock = Clock(cpu=2.0, torch=1.0)
    monkeypatch.setattr(timing, "cache_folder", lambda: tmp_path / "gatedrnn")  # kernels stay in the common one
    monkeypatch.setattr(timing, "measurable", lambda device: True)
    monkeypatch.setattr(timing, "_seconds", clock)
    for name, backend in BACKENDS.items():
        monkeypatch.setattr(backend, "run", noted(clock, name, backend.run), raising=True)
        monkeypatch.setattr(backend, "prepare", noted_once_prepared(clock, name, backend.prepare), raising=True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    timing.forget()
    yield clock
    timing.forget()


def noted(clock, name, run):
    def spy(*given):
        clock.now = name
        return run(*given)

    return spy


def noted_once_prepared(clock, name, prepare):
    def spy(requests):
        run = prepare(requests)
        return None if run is None else noted(clock, name, run)

    return spy


def ran(clock, layer, *shape):
    layer(torch.ones(*shape))
    return clock.now


pytestmark = pytest.mark.skipif(
    BACKENDS["cpu"].supports(LSTM(2, 2).request(0, torch.ones(1, 1, 2), (torch.zeros(1, 2),) * 2)) is not None,
    reason="the cpu backend cannot run here",
)


def test_the_table_lies_beside_the_kernels():
    assert timing._path() == cache_folder() / "backends.json"


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
    (size,) = json.loads(timing._path().read_text()).items()
    assert ": gru " in size[0] and "D=3 B<=2 T<=8 float32 training" in size[0] and size[1] == {"cpu": 2.0, "torch": 1.0}
    timing.forget()
    assert ran(clock, layer, 5, 2, 3) == "torch" and len(clock.ran) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"a": 1}', '{"a": {"cpu": "fast"}}', "\udcff", 100_000 * "["], ids=range(7)
)
def test_a_damaged_table_is_measured_anew(clock, content):
    path = timing._path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert ran(clock, LSTM(3, 4), 5, 2, 3) == "torch" and len(clock.ran) == 2
    assert len(json.loads(path.read_text())) == 1


def test_a_file_where_the_folder_should_be_costs_only_the_table(clock, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(timing, "_path", lambda: tmp_path / "taken" / "backends.json")
    assert [ran(clock, LSTM(3, 4), 5, 2, 3) for _ in range(2)] == ["torch", "torch"] and len(clock.ran) == 2


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
    monkeypatch.setattr(timing, "_seconds", lambda run, device: pytest.fail("a CPU was timed"))
    LSTM(3, 4)(torch.ones(5, 2, 3))
    assert not timing.measurable(torch.device("cpu"))


def finished(function, seconds=20):
    """What `function` returns, run in a thread of its own: a test that hangs would hold up all the others."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "did not come back, or raised"
    return found[0]


def test_a_first_call_inside_a_checkpoint_comes_back(clock):
    layer, x = LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)

    def gradient(run):
        (found,) = torch.autograd.grad(run().square().sum(), x)
        return found

    kept = finished(lambda: gradient(lambda: checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)))
    assert clock.ran == ["cpu", "torch"]
    torch.testing.assert_close(kept, gradient(lambda: layer(x)[0]))


def test_hooks_on_saved_tensors_see_nothing_of_a_measurement(clock):
    layer, x, packed = LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        layer(x)
        first, packed[:] = len(packed), []
        layer(x)
    assert first == len(packed) and clock.ran == ["cpu", "torch"]
    timing.forget()
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        layer(torch.randn(9, 2, 3))
    assert len(clock.ran) == 4


def test_threads_that_meet_a_size_at_once_take_the_same_and_none_waits_for_another(clock, monkeypatch):
    meeting, running = threading.Barrier(2, timeout=20), timing._seconds

    def both_at_once(run, device):
        meeting.wait()
        with alone:  # the clock's own
            return running(run, device)

    alone = threading.Lock()
    monkeypatch.setattr(timing, "_seconds", both_at_once)
    layer, x, taken = LSTM(3, 4), torch.ones(5, 2, 3), []
    threads = [threading.Thread(target=lambda: taken.append(layer(x)[0]), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 2 and torch.equal(*taken) and set(timing._KNOWN.values()) == {"torch"}


def test_nothing_is_timed_where_a_mode_watches_every_operator():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert not timing.measurable(torch.device("cuda:0"))


def test_a_measurement_that_failed_is_not_kept_for_later_processes(clock, monkeypatch):
    run = BACKENDS["torch"].run

    def full(request):
        raise torch.OutOfMemoryError("no room")

    layer = LSTM(3, 4)
    monkeypatch.setattr(BACKENDS["torch"], "run", full)
    assert [ran(clock, layer, 5, 2, 3) for _ in range(2)] == ["cpu", "cpu"]
    assert clock.ran == ["cpu"] and not timing._path().exists()
    monkeypatch.setattr(BACKENDS["torch"], "run", run)
    timing.forget()  # a later process
    assert ran(clock, layer, 5, 2, 3) == "torch"


def test_a_compiler_that_is_missing_leaves_the_other_backend(clock, monkeypatch):
    def broken(request):
        raise FileNotFoundError("ptxas")

    monkeypatch.setattr(BACKENDS["cpu"], "run", broken)
    assert ran(clock, LSTM(3, 4), 5, 2, 3) == "torch"


def test_where_every_measurement_fails_the_first_backend_runs_untimed(clock, monkeypatch):
    def full(run, device):
        raise torch.OutOfMemoryError("no room for copies")

    monkeypatch.setattr(timing, "_seconds", full)
    assert ran(clock, LSTM(3, 4), 5, 2, 3) == "cpu"
    assert not timing._KNOWN


def test_another_version_measures_anew(clock, monkeypatch):
    layer = LSTM(3, 4)
    ran(clock, layer, 5, 2, 3)
    for count, (owner, name, value) in enumerate(
        (
            (gatedrnn, "__version__", "99.0"),
            (torch, "__version__", "99.0"),
            (torch.backends.cudnn, "version", lambda: 99_000),
            (timing, "_triton", lambda: "99.0"),
            (timing, "float32_products", lambda: "tf32"),
        ),
        2,
    ):
        monkeypatch.setattr(owner, name, value)
        timing.forget()
        ran(clock, layer, 5, 2, 3)
        assert len(json.loads(timing._path().read_text())) == count, name


def test_entries_of_other_processes_stay(clock, monkeypatch):
    path = timing._path()
    timed = timing._timed

    def meanwhile(able, request):
        seconds = timed(able, request)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"of another process": {"cpu": 1.0, "torch": 2.0}}')
        return seconds

    monkeypatch.setattr(timing, "_timed", meanwhile)
    ran(clock, LSTM(3, 4), 5, 2, 3)
    assert len(json.loads(path.read_text())) == 2
    lock, held = FileLock(f"{path}.lock"), []
    write = timing.write_json
    monkeypatch.setattr(timing, "write_json", lambda *given: held.append(free(lock)) or write(*given))
    ran(clock, LSTM(3, 4), 9, 2, 3)
    assert held == [False]


def free(lock):
    """Whether nobody holds it."""
    try:
        with FileLock(lock.lock_file, timeout=0):
            return True
    except Timeout:
        return False


def test_a_lock_that_another_process_never_gives_back_costs_only_the_table(clock, monkeypatch):
    monkeypatch.setattr(timing, "_PATIENCE", 0.05)
    path = timing._path()
    path.parent.mkdir(parents=True)
    with FileLock(f"{path}.lock"):
        assert ran(clock, LSTM(3, 4), 5, 2, 3) == "torch"
    assert not path.exists()


def test_a_projection_belongs_to_the_size_that_a_time_is_kept_for():
    def size(proj_size):
        layer = RNN(3, 8, proj_size=proj_size)
        state = (torch.zeros(2, proj_size or 8),)
        return timing._size(layer.request(0, torch.randn(4, 2, 3), state))

    assert len({size(each) for each in (0, 2, 3)}) == 3 and " J=2 " in size(2)
