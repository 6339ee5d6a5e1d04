"""Around the `cpu` backend's kernels: their cache, what may be missing, processes and threads, and the noise they draw."""

import errno
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numba")

import torch
from numba.core.compiler_lock import global_compiler_lock
from torch.utils.data import DataLoader, Dataset

from gatedrnn import G2LSTM, LSTM, Recurrent
from gatedrnn.compiler import equations
from gatedrnn.core.errors import ArgumentError, BackendError, DataError
from gatedrnn.core.files import cache_folder
from gatedrnn.sequence.backends.cpu.compile import build, kernels, records, sources
from gatedrnn.sequence.backends.cpu.operators import pointwise
from gatedrnn.sequence.backends.cpu.recurrence.compiled import parts_of
from gatedrnn.sequence.backends.cpu.runtime import team
from gatedrnn.sequence.backends.cpu.runtime.once import LOCK, once
from gatedrnn.sequence.backends.cpu.runtime.target import best, targets
from gatedrnn.sequence.backends.cpu.vector import simd
from gatedrnn.sequence.plan import plan_for

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60
WIDTHS = {target.lanes: name for name, target in targets().items()}  # one target a vector width


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def process(script, **environment):
    """Standard output of a fresh Python that runs `script`."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The cache of object code.


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache's folder, and a call of `cached` that counts how often code was made."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "_UNKEPT", {})
    made = []

    def make():
        made.append(1)
        return b"code" * 100

    def get():
        assert build.cached("test", best(), make) == b"code" * 100
        return len(made)

    return tmp_path, get


def test_code_is_made_once_and_then_read(cache):
    folder, get = cache
    assert [get(), get()] == [1, 1]
    (path,) = files(folder)
    assert path.parent == cache_folder() == folder / "gatedrnn"
    assert path.name.startswith(f"test-{best().name}-") and path.suffix == ".o"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content[:-1],
        lambda content: content[:10],
        lambda content: b"",
        lambda content: content + b"x",
    ],
    ids=["code", "checksum", "last-byte-lost", "cut", "empty", "longer"],
)
def test_a_damaged_file_is_remade(cache, damage):
    folder, get = cache
    get()
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert get() == 2
    assert path.read_bytes() == whole and get() == 2


def test_a_full_disk_costs_the_file_alone(cache, monkeypatch):
    folder, get = cache
    write_bytes = Path.write_bytes

    def half(path, content):
        write_bytes(path, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    monkeypatch.setattr(build, "_TOLD", False)
    with pytest.warns(UserWarning, match="every process compiles them again.*No space left"):
        assert get() == 1 and files(folder) == []
    assert get() == 1 and files(folder) == []  # made once a process
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    assert get() == 1 and len(files(folder)) == 1  # and kept as soon as it can be


def test_a_reader_never_sees_half_a_file(cache, monkeypatch):
    folder, get = cache
    write_bytes, seen = Path.write_bytes, []

    def spy(path, content):
        result = write_bytes(path, content)
        visible = [not any(part.startswith(".") for part in other.relative_to(folder).parts) for other in files(folder)]
        seen.append(visible)
        return result

    monkeypatch.setattr(Path, "write_bytes", spy)
    get()
    assert seen == [[False]] and len(files(folder)) == 1


def test_targets_and_names_do_not_share_a_file(cache):
    folder, _ = cache
    for name in ("one", "two"):
        for target in targets().values():
            build.cached(name, target, lambda: b"x")
    assert len(files(folder)) == 2 * len(targets())


def failing(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_cache_that_is_filled_but_cannot_be_written_is_read_in_silence(cache, monkeypatch):
    _, get = cache
    get()
    for place, name in ((tempfile, "mkdtemp"), (Path, "mkdir"), (Path, "touch")):
        monkeypatch.setattr(place, name, failing(errno.EROFS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get() == 1


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT, errno.EACCES, errno.EIO])
def test_a_file_that_vanishes_while_it_is_read_is_made_again(cache, monkeypatch, number):
    _, get = cache
    get()
    read_bytes, fail = Path.read_bytes, failing(number)
    monkeypatch.setattr(Path, "read_bytes", lambda path: fail() if path.suffix == ".o" else read_bytes(path))
    assert get() == 2


def test_a_machine_of_another_kind_has_its_own_file(cache, monkeypatch):
    folder, get = cache
    get()
    monkeypatch.setattr(build.llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    assert get() == 2 and len(files(folder)) == 2


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(DataError, match=r"^cache folder: .* home folder; got none\. Set HOME or XDG_CACHE_HOME"):
        cache_folder()
    monkeypatch.setattr(build, "_TOLD", False)
    with pytest.warns(UserWarning, match="every process compiles them again.*Set HOME"):
        assert build.cached("test", best(), lambda: b"code") == b"code"


# Files that were upgraded under this process.


@pytest.fixture
def upgraded(cache, monkeypatch):
    """Upgrades the files; code that is kept by then is of those that were imported."""
    monkeypatch.setattr(sources, "_LOST", None)
    return lambda: monkeypatch.setattr(sources, "fingerprint", lambda: "another")


def test_after_an_upgrade_what_is_kept_is_read_and_nothing_is_compiled(cache, upgraded):
    folder, get = cache
    get()
    upgraded()
    assert get() == 1  # of the files that were imported
    files(folder)[0].unlink()
    with (
        pytest.warns(UserWarning, match="without their kernels and are slower: .*restart the process"),
        pytest.raises(BackendError, match=r"backend='cpu': cannot compile a kernel; got .*restart the process"),
    ):
        get()
    assert files(folder) == []
    x = torch.zeros(2, 1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        LSTM(3, 4)(x)
    with pytest.raises(BackendError, match="restart the process"):
        LSTM(3, 4, backend="cpu")(x)


def test_an_upgrade_while_code_is_compiled_keeps_it_out_of_the_cache(cache, upgraded):
    folder, _ = cache

    def make():
        upgraded()
        return b"of both"

    with pytest.warns(UserWarning, match="slower"), pytest.raises(BackendError, match="restart the process"):
        build.cached("test", best(), make)
    assert files(folder) == []


@pytest.mark.parametrize("loop", records.LOOPS)
def test_what_a_loop_is_called_with_has_one_name_and_kind_each(loop):
    names = records.names(loop)
    assert len(set(names)) == len(names) == len(records.kinds(loop))
    assert set(records.kinds(loop)) <= {"int", "index", "real", "weight", "packed"}


def test_numba_s_passes_that_are_left_out_find_nothing_in_a_kernel(monkeypatch):
    layer = LSTM(3, 4)
    linked = parts_of(plan_for(layer.cell.step, layer.spec).kernel, "backward")[2]
    with global_compiler_lock:
        code = kernels._linked(linked, best(), "f32")
        monkeypatch.setattr(simd, "_FOUND_NOWHERE", ())
        assert kernels._linked(linked, best(), "f32") == code


# What may be missing.

MISSING = """
import sys, warnings
{before}
import torch
from gatedrnn import LSTM, GRU, G2LSTM
from gatedrnn.core.errors import BackendError
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    for layer in (LSTM(5, 6), GRU(5, 6), LSTM(5, 6), G2LSTM(5, 6, noise_probability=0.5)):
        outputs = []
        for backend in ("auto", "reference"):
            layer.backend = backend
            layer.zero_grad()
            torch.manual_seed(1)
            output = layer(x)[0]
            output.square().sum().backward()
            outputs.append((output, layer.weight_hh_l0.grad.clone()))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*outputs)) and bool(outputs[0][1].any())
    layer.backend = "cpu"
    try:
        layer(x)
    except BackendError as error:
        print("refused:", error)
ours = [str(w.message) for w in caught if "gatedrnn" in str(w.message)]
print(len(ours), *ours, sep="\\n")
"""


@pytest.mark.parametrize("name", ["numba", "llvmlite"])
def test_without_a_compiler_one_warning_and_the_same_answer(name):
    refused, count, warning = process(MISSING.format(before=f"sys.modules[{name!r}] = None")).splitlines()
    assert count == "1" and f"{name} is not installed" in warning and "without their kernels" in warning
    assert refused.startswith("refused:") and f"{name} is not installed" in refused


def test_after_an_upgrade_before_the_first_call_one_warning_and_the_same_answer():
    before = "from gatedrnn.sequence.backends.cpu.compile import sources; sources.fingerprint = lambda: 'another'"
    refused, count, warning = process(MISSING.format(before=before)).splitlines()
    assert count == "1" and "restart the process" in warning and "without their kernels" in warning
    assert "restart the process" in refused


def test_without_a_folder_for_the_cache_code_serves_the_process_and_it_is_said_once(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(build, "_TOLD", False)
    with pytest.warns(UserWarning) as said:
        for code in (b"one", b"two"):
            assert build.cached(code.decode(), best(), lambda code=code: code) == code
        for code in (b"one", b"two"):
            assert build.cached(code.decode(), best(), failing(0)) == code  # made once a process
    (warning,) = (str(each.message) for each in said)
    assert "every process compiles them again" in warning and str(tmp_path / "file" / "below") in warning


def test_a_target_this_cpu_lacks_is_named_in_one_line(monkeypatch):
    monkeypatch.setenv("GATEDRNN_CPU", "nonsense")
    for act in (best, lambda: LSTM(3, 4, backend="cpu")(torch.zeros(2, 1, 3))):
        with pytest.raises(ArgumentError, match=r"^GATEDRNN_CPU: .*; got 'nonsense'\. Use .*portable\.$") as caught:
            act()
        assert "\n" not in str(caught.value)


# Processes and threads.

FIRST_CALL = """
import sys, time
import torch
import gatedrnn
torch.manual_seed(0)
layer, x = gatedrnn.LSTM(8, 8, backend="cpu"), torch.randn(4, 3, 8)
start = time.process_time()  # other processes may be in the way
layer(x)[0].sum().backward()
with torch.no_grad():
    layer(x)
print(time.process_time() - start, "numba" in sys.modules, bool(layer.weight_hh_l0.grad.any()))
"""


def test_a_second_process_starts_at_once_and_without_numba(capsys):
    exec(FIRST_CALL, {})
    capsys.readouterr()
    times = []
    for attempt in range(3):  # another process may be in the way of one
        seconds, numba, gradient = process(FIRST_CALL).split()
        assert gradient == "True"
        if attempt == 0 and numba == "True":  # another test's cache has this process's kernels
            continue
        assert numba == "False"
        times.append(float(seconds))
        if times[-1] < 0.5:
            break
    assert min(times) < 0.5, times


COLD_THREADS = """
import threading
import numba
import torch
import gatedrnn.sequence.backends.cpu.operators.pointwise
found, ready = [], threading.Barrier(3)
def work():
    ready.wait()
    found.append(torch.ops.gatedrnn.logistic_noise(torch.tensor([1]), 4, 8, [0, 8], 1.0, 1.0, torch.empty(0)))
def other():
    ready.wait()
    assert numba.njit(lambda a: a + 1)(1) == 2
    found.append(None)
workers = [threading.Thread(target=what) for what in (work, work, other)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
one, two = [noise for noise in found if noise is not None]
assert len(found) == 3 and torch.equal(one, two) and one.all()
"""


def test_two_threads_of_two_processes_and_a_user_s_own_may_compile_at_once(tmp_path):
    given = {"NUMBA_CACHE_DIR": str(tmp_path)}
    both = [threading.Thread(target=process, args=(COLD_THREADS,), kwargs=given) for _ in range(2)]
    failed = []
    before, threading.excepthook = threading.excepthook, failed.append
    try:
        for one in both:
            one.start()
        for one in both:
            one.join()
    finally:
        threading.excepthook = before
    assert not failed
    assert [path.suffix for path in files(tmp_path / "gatedrnn")] == [".o"]


NUMBA_STARTS = """
import faulthandler, threading, time
import torch
from numba.core import cpu
from numba.core.registry import cpu_target
import gatedrnn.sequence.backends.cpu.operators.pointwise
faulthandler.dump_traceback_later(30, exit=True)
inside, init = threading.Event(), cpu.CPUContext.__init__
def slow(self, *given):
    inside.set()
    time.sleep(1)
    init(self, *given)
cpu.CPUContext.__init__ = slow
user = threading.Thread(target=lambda: cpu_target.target_context)
user.start()
inside.wait()
assert torch.ops.gatedrnn.logistic_noise(torch.tensor([1]), 4, 8, [0, 8], 1.0, 1.0, torch.empty(0)).all()
user.join()
"""


def test_a_kernel_is_compiled_while_a_thread_of_the_user_s_starts_numba(tmp_path):
    process(NUMBA_STARTS, NUMBA_CACHE_DIR=str(tmp_path))


def test_numba_compiles_for_one_thread_at_a_time(cache, monkeypatch):
    from numba.core.compiler_lock import global_compiler_lock

    inside, most, found, ready = [], [], [], threading.Barrier(3)

    def compile_entry(*_):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.1)
        inside.pop()
        return b"code"

    monkeypatch.setattr(build, "compile_entry", compile_entry)
    monkeypatch.setattr(build, "load", lambda *_: 0)

    def work(kind):
        ready.wait()
        found.append(kernels.kernel("noise", "draw", replace(best(), name="unused"), kind, pointwise._DRAW))

    def user():
        ready.wait()
        with global_compiler_lock:
            compile_entry()

    workers = [threading.Thread(target=work, args=(kind,)) for kind in ("f32", "f64")]
    workers.append(threading.Thread(target=user))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most == [1, 1, 1] and len(found) == 2


def test_two_threads_work_a_thing_out_once():
    calls, found, ready = [], [], threading.Barrier(4)

    @once
    def slow(value):
        calls.append(value)
        time.sleep(0.05)
        return slow(value - 1) + 1 if value else 0  # it may call itself

    def work():
        ready.wait()
        found.append(slow(3))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert calls == [3, 2, 1, 0] and found == [3] * 4


def test_what_failed_is_tried_again_and_what_is_known_takes_no_lock():
    results = [OSError("full"), 5]

    @once
    def act():
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    with pytest.raises(OSError, match="full"):
        act()
    assert act() == 5
    found = []
    with LOCK:
        worker = threading.Thread(target=lambda: found.append(act()))
        worker.start()
        worker.join(WAIT_S)
    assert found == [5]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lock", [LOCK, equations._LOCK], ids=["compiles", "traces"])
def test_a_fork_waits_for_a_thread_that_compiles_and_the_child_can_compile(lock):
    held, done = threading.Event(), []

    def compile_something():
        with lock:
            held.set()
            time.sleep(0.2)
            done.append(1)

    worker = threading.Thread(target=compile_something)
    worker.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if done and lock.acquire(timeout=10) else 1)
    worker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock:
        pass


def test_a_team_is_of_torch_s_own_threads(two_threads):
    library = team._openmp()
    if library is None:
        pytest.skip("no GNU OpenMP")
    for count in (3, 1, 2):
        torch.set_num_threads(count)
        assert library.omp_get_max_threads() == count


def test_without_a_pool_it_is_said_unless_one_thread_is_wanted(two_threads, monkeypatch):
    monkeypatch.setattr(team.ctypes, "CDLL", lambda path: object())
    with pytest.warns(UserWarning, match="run on one thread"):
        assert team._openmp.__wrapped__() is None
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert team._openmp.__wrapped__() is None


def test_threads_where_torch_lies_in_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "with a space"
    try:
        for package in ("torch", "torchgen"):
            place = Path(importlib.util.find_spec(package).origin).parent
            leave_out = shutil.ignore_patterns("include", "share", "test", "__pycache__")
            shutil.copytree(place, folder / package, copy_function=os.link, ignore=leave_out)
    except OSError as error:
        pytest.skip(f"torch cannot be linked to the temporary folder: {error}")
    script = "import torch; from gatedrnn.sequence.backends.cpu.runtime import team; print(torch.__file__, team.size(), sep='|')"
    given = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    path, size = process(script, **given).strip().split("|")
    assert path.startswith(str(folder)) and size == ("1" if team._openmp() is None else "2")


def large(training=False):
    """A layer and an input with work enough for a team of threads."""
    torch.manual_seed(0)
    return Recurrent("lstm", 32, 32, backend="cpu").train(training), torch.randn(20, 16, 32)


def answer(layer, x):
    output, (h, c) = layer(x)
    gradients = torch.autograd.grad((output**2).sum(), list(layer.parameters()))
    with torch.no_grad():
        again = layer(x)[0]
    return [value.detach() for value in (output, h, c, again, *gradients)]


def _in_child(layer, x, pipe):
    pipe.send([value.numpy() for value in answer(layer, x)])
    pipe.close()


def test_a_forked_child_works_after_its_parent_compiled_and_used_threads(tmp_path):
    """In a fresh process: a thread of autograd's, which another test may have started, does not outlive a fork.

    The cell's rows are compiled there, although Numba is told to compile nothing of its user's own; the loop that calls them
    takes ten seconds, and is the one of other tests.
    """
    answer(*large())
    shutil.copytree(
        cache_folder(), tmp_path / "gatedrnn", ignore=lambda _, names: {n for n in names if not n.startswith("loop-")}
    )
    before = files(tmp_path)
    script = "import test_cpu_service; test_cpu_service.work_before_and_after_a_fork()"
    given = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore", "XDG_CACHE_HOME": str(tmp_path)}
    process(script, OMP_NUM_THREADS="2", NUMBA_DISABLE_JIT="1", **given)
    assert len(files(tmp_path)) > len(before) > 0  # kernels were compiled, which takes derivatives


def work_before_and_after_a_fork():
    torch.set_num_threads(2)
    layer, x = large()
    expected = answer(layer, x)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(layer, x, theirs))
    child.start()
    try:
        assert ours.poll(WAIT_S), "the child gave no answer"
        found = [torch.from_numpy(value) for value in ours.recv()]
        child.join(WAIT_S)
        assert child.exitcode == 0
    finally:
        child.kill()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(answer(layer, x), expected, strict=True):
        assert torch.equal(one, other)  # the parent goes on


class Encoded(Dataset):
    def __init__(self, layer, x):
        self.layer, self.x = layer, x

    def __len__(self):
        return 6

    def __getitem__(self, index):
        with torch.no_grad():
            return self.layer(self.x * (index + 1))[0]


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_data_loader(two_threads):
    layer, x = large()
    items = Encoded(layer, x)
    expected = [items[index] for index in range(6)]
    found = list(DataLoader(items, batch_size=None, num_workers=2, timeout=WAIT_S))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_two_python_threads_at_once(count, request):
    if count == 2:
        request.getfixturevalue("two_threads")
    jobs = []
    for cell, seed in (("lstm", 1), ("gru", 2)):
        torch.manual_seed(seed)
        jobs.append((Recurrent(cell, 32, 40, backend="cpu"), torch.randn(12, 8 + seed, 32)))

    def work(layer, x):
        output, _ = layer(x)
        gradients = torch.autograd.grad((output**2).sum(), list(layer.parameters()))
        with torch.no_grad():
            return [output.detach(), layer(x)[0], *gradients]

    expected = [work(*job) for job in jobs]
    wrong, done = [], []

    def repeat(job, answer):
        for _ in range(30):
            for one, other in zip(work(*job), answer, strict=True):
                if not torch.allclose(one, other, rtol=1e-4, atol=1e-5):
                    wrong.append(job)
        done.append(job)

    workers = [threading.Thread(target=repeat, args=pair, daemon=True) for pair in zip(jobs, expected, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT_S)
    assert len(done) == 2 and not wrong


# Noise.


@pytest.mark.parametrize("lengths", [None, [2, 6, 4]], ids=["whole", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_with_noise_is_the_same_on_the_reference(dtype, lengths):
    torch.manual_seed(0)
    layer = G2LSTM(7, 13, 2, bidirectional=True, noise_probability=0.5, dtype=dtype)
    x, found = torch.randn(6, 3, 7, dtype=dtype), []
    for backend in ("cpu", "reference"):
        layer.backend = backend
        torch.manual_seed(11)
        output = layer(x, lengths=lengths)[0]
        found.append([output, *torch.autograd.grad((output**2).sum(), list(layer.parameters())), torch.rand(3)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 if dtype == torch.float32 else 1e-12)
    torch.manual_seed(12)
    assert not torch.allclose(layer(x, lengths=lengths)[0], found[1][0], atol=1e-3)
