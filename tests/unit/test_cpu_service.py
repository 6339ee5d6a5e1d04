"""Around the `cpu` backend's kernels: their cache, what may be missing, processes and threads, and the noise they draw."""

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("numba")

import torch
from torch.utils.data import DataLoader, Dataset

from gatedrnn import G2LSTM, LSTM, Recurrent
from gatedrnn.cells import CELLS
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import cache_folder
from gatedrnn.gates import Gates
from gatedrnn.sequence import Draw, draw_noise, plan_noise
from gatedrnn.sequence.backends.cpu import build
from gatedrnn.sequence.backends.cpu.target import best, targets

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
    assert get() == 1 and files(folder) == []
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    assert get() == 2 and len(files(folder)) == 1


def test_a_reader_never_sees_half_a_file(cache, monkeypatch):
    folder, get = cache
    write_bytes, seen = Path.write_bytes, []

    def spy(path, content):
        result = write_bytes(path, content)
        seen.append([other.suffix == ".o" and not other.name.startswith(".") for other in files(folder)])
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


def test_without_a_folder_for_the_cache_one_warning_and_the_same_answer(tmp_path):
    (tmp_path / "file").write_text("no folder")
    lines = process(MISSING.format(before=""), NUMBA_CACHE_DIR=str(tmp_path / "file" / "below")).splitlines()
    refused, count, warning = lines
    assert count == "1" and "cache cannot be kept" in warning and str(tmp_path / "file" / "below") in warning
    assert "cache cannot be kept" in refused


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
start = time.perf_counter()
layer(x)[0].sum().backward()
with torch.no_grad():
    layer(x)
print(time.perf_counter() - start, "numba" in sys.modules, bool(layer.weight_hh_l0.grad.any()))
"""


def test_a_second_process_starts_at_once_and_without_numba():
    process(FIRST_CALL)
    times = []
    for _ in range(3):  # another process may be in the way of one
        seconds, numba, gradient = process(FIRST_CALL).split()
        assert numba == "False" and gradient == "True"
        times.append(float(seconds))
        if times[-1] < 0.5:
            break
    assert min(times) < 0.5, times


COLD_THREADS = """
import threading
import torch
from gatedrnn import RNN
torch.manual_seed(0)
layer, x, found = RNN(8, 8, backend="cpu"), torch.randn(4, 3, 8), []
ready = threading.Barrier(2)
def work():
    ready.wait()
    with torch.no_grad():
        found.append(layer(x)[0])
workers = [threading.Thread(target=work) for _ in range(2)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
layer.backend = "reference"
expected = layer(x)[0]
assert len(found) == 2
assert all(torch.allclose(one, expected, atol=1e-5) for one in found)
"""


def test_two_threads_may_compile_at_once(tmp_path):
    process(COLD_THREADS, NUMBA_CACHE_DIR=str(tmp_path))


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


@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_works_after_its_parent_used_threads(two_threads):
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


def noise_of(p=0.3, scale=1.0, seed=7, rows=400, columns=64, blocks=((0, 64),), dtype=torch.float32):
    like = torch.empty(0, dtype=dtype)
    return Draw(torch.tensor([seed]), blocks, p, scale).rows(rows, columns, like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1.0, 0.5, 0.2, 0.01])
def test_the_share_of_noisy_elements_is_the_probability(p, dtype):
    count = 400 * 1000
    found = torch.count_nonzero(noise_of(p, rows=400, columns=1000, blocks=((0, 1000),), dtype=dtype)) / count
    assert abs(found - p) <= 5 * (p * (1 - p) / count) ** 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("p", "scale"), [(1.0, 1.0), (0.3, 1.0), (0.2, 2.5)])
def test_noise_is_logistic(p, scale, dtype):
    noise = noise_of(p, scale, rows=400, columns=1000, blocks=((0, 1000),), dtype=dtype)
    drawn = noise[noise != 0].double().sort().values / scale
    n = len(drawn)
    cumulative = torch.arange(n + 1, dtype=torch.float64) / n
    gap = torch.maximum((torch.sigmoid(drawn) - cumulative[:-1]).abs(), (torch.sigmoid(drawn) - cumulative[1:]).abs())
    assert gap.max() < 1.95 / n**0.5  # Kolmogorov and Smirnov's test at 0.1 %
    assert drawn.isfinite().all() and drawn.abs().max() < 17


def test_elements_are_independent_of_their_neighbours():
    noise = noise_of(1.0, rows=2000, columns=200, blocks=((0, 200),))
    kept = torch.sigmoid(noise) - 0.5
    variance = (kept**2).mean()
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.roll(50, 1), kept.flip(0)):
        assert abs((kept * other).mean() / variance) < 5 / kept.numel() ** 0.5
    assert len(noise.unique()) > 0.9 * noise.numel()
    assert not torch.equal(noise, noise_of(1.0, seed=8, rows=2000, columns=200, blocks=((0, 200),)))
    high = noise_of(1.0, seed=7 + 2**40, rows=2000, columns=200, blocks=((0, 200),))
    assert not torch.equal(noise, high)  # all 62 bits of a seed count


def test_noise_that_rounding_could_make_infinite_is_bounded():
    # the greatest u below p = 0.386 gives u / p = 1 in float32
    noise = noise_of(0.386, rows=2**14, columns=2**11, blocks=((0, 2**11),))
    assert noise.isfinite().all() and noise.abs().max() < 17


@pytest.mark.parametrize("name", WIDTHS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_seed_gives_the_same_noise_on_every_target(name, dtype, monkeypatch):
    given = {"rows": 50, "columns": 45, "blocks": ((0, 13), (13, 20), (30, 43)), "dtype": dtype}
    expected = noise_of(**given)
    monkeypatch.setenv("GATEDRNN_CPU", name)
    found = noise_of(**given)
    assert torch.equal(found != 0, expected != 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_float32_and_float64_draw_the_same_elements():
    single, double = (noise_of(dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert torch.equal(single != 0, double != 0)
    torch.testing.assert_close(torch.sigmoid(single.double()), torch.sigmoid(double), rtol=0, atol=1e-6)


def test_the_same_noise_with_one_thread_and_two(two_threads):
    given = {"rows": 1000, "columns": 700, "blocks": ((0, 300), (400, 700))}
    two = noise_of(**given)
    torch.set_num_threads(1)
    assert torch.equal(noise_of(**given), two) and torch.count_nonzero(two)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 12, 17, 33])
def test_noise_stays_in_its_blocks(width):
    blocks = ((2, 2 + width), (40, 40 + width))
    noise = noise_of(1.0, rows=30, columns=80, blocks=blocks)
    inside = torch.zeros(80, dtype=torch.bool)
    for first, last in blocks:
        inside[first:last] = True
    assert torch.count_nonzero(noise[:, ~inside]) == 0
    assert torch.count_nonzero(noise[:, inside]) > 0.99 * 30 * 2 * width
    assert not torch.equal(noise[:, 2 : 2 + width], noise[:, 40 : 40 + width])
    without = noise_of(0.5, rows=30, columns=80, blocks=())
    assert torch.count_nonzero(without) == 0 and without.shape == (30, 80)


def test_noise_as_a_tensor_and_still_to_be_drawn_are_the_same():
    gates = Gates(temperature=0.5, noise_probability=0.4)
    spec, like = CELLS["lstm"].make_spec(9), torch.empty(0)
    tensor = draw_noise(spec, gates, 5, 3, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    draw = plan_noise(spec, gates, like)
    torch.testing.assert_close(draw.rows(15, 36, like).view(5, 3, 36), tensor / 0.5, rtol=1e-6, atol=0)
    assert torch.count_nonzero(tensor[..., :18]) and not torch.count_nonzero(tensor[..., 18:])


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
