"""Noise: uniform numbers of a counter, the same in plain PyTorch, on the CPU and on a GPU."""

import pytest
import torch

from gatedrnn import G2LSTM, ONLSTM, Gates
from gatedrnn.cells import CELLS
from gatedrnn.gates import logistic_noise, uniform
from gatedrnn.sequence import draw_noise, draw_seed
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.sequence.backends.cpu.runtime.target import targets
from gatedrnn.sequence.perturb import plan_noise

SEED = torch.tensor([0x0123_4567_89AB_CDEF >> 2])
NO_KERNEL = unavailable(torch.empty(0))
WIDTHS = {target.lanes: name for name, target in targets().items()}  # one target a vector width
on_the_cpu = pytest.mark.skipif(NO_KERNEL is not None, reason=str(NO_KERNEL))


def philox(counter, key):
    """Philox-4x32-7 of one counter, in Python's whole numbers, from the paper's definition."""
    c, k = list(counter), list(key)
    for _ in range(7):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(u):
    """The 23 bits that a uniform number was made of."""
    return (u.double() * 2**23 - 0.5).round().long()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 22])
def test_uniform_numbers_are_philox(count):
    rows = [0, 1, 7, 2**33 + 5, -1, -(2**40)]
    found = words(uniform(SEED, torch.tensor(rows), count))
    quarter, key = -(-count // 4), [int(SEED) & 0xFFFFFFFF, int(SEED) >> 32]
    for row, line in zip(rows, found.tolist(), strict=True):
        number = row % 2**64
        expected = [philox([c, 0, number & 0xFFFFFFFF, number >> 32], key) for c in range(quarter)]
        assert line == [four[k] >> 9 for k in range(4) for four in expected][:count]


def kernels():
    """The operators that draw."""
    if NO_KERNEL is None:
        yield pytest.param("logistic_noise", id="cpu")
    yield pytest.param("logistic_noise_triton", id="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("operator", kernels())
def test_a_kernel_draws_the_same_numbers(operator, dtype, monkeypatch):
    if operator.endswith("triton"):
        pytest.importorskip("triton", minversion="3.4")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        from gatedrnn.sequence.backends.triton import drawing  # noqa: F401 - registers it
    draw = plan_noise(CELLS["lstm"].make_spec(21), Gates(noise_probability=1.0, temperature=0.5), SEED)
    edges = [edge for block in draw.blocks for edge in block]
    given = SEED, 20, 84, edges
    found = getattr(torch.ops.gatedrnn, operator)(*given, 1.0, 1.0, torch.empty(0, dtype=torch.float64))
    truth = [uniform(SEED, torch.arange(20) * len(draw.blocks) + k, 21) for k in range(len(draw.blocks))]
    for (first, last), u in zip(draw.blocks, truth, strict=True):
        assert torch.equal(words(torch.sigmoid(found[:, first:last])), words(u))
    for p in (1.0, 0.3, 1e-3):
        draw = plan_noise(CELLS["lstm"].make_spec(21), Gates(noise_probability=p, temperature=0.7), SEED)
        ours = getattr(torch.ops.gatedrnn, operator)(*given, draw.probability, draw.scale, torch.empty(0, dtype=dtype))
        theirs = draw.rows(20, 84, dtype)
        assert torch.equal(ours != 0, theirs != 0)
        close = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 1e-12}
        torch.testing.assert_close(torch.sigmoid(ours), torch.sigmoid(theirs), **close)


def noise_of(p=0.3, scale=1.0, seed=7, rows=400, columns=64, blocks=((0, 64),), dtype=torch.float32):
    edges = [edge for block in blocks for edge in block]
    like = torch.empty(0, dtype=dtype)
    return torch.ops.gatedrnn.logistic_noise(torch.tensor([seed]), rows, columns, edges, p, scale, like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1.0, 0.5, 0.2, 0.01])
@on_the_cpu
def test_the_share_of_noisy_elements_is_the_probability(p, dtype):
    count = 400 * 1000
    found = torch.count_nonzero(noise_of(p, rows=400, columns=1000, blocks=((0, 1000),), dtype=dtype)) / count
    assert abs(found - p) <= 5 * (p * (1 - p) / count) ** 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("p", "scale"), [(1.0, 1.0), (0.3, 1.0), (0.2, 2.5)])
@on_the_cpu
def test_noise_is_logistic(p, scale, dtype):
    noise = noise_of(p, scale, rows=400, columns=1000, blocks=((0, 1000),), dtype=dtype)
    drawn = noise[noise != 0].double().sort().values / scale
    n = len(drawn)
    cumulative = torch.arange(n + 1, dtype=torch.float64) / n
    gap = torch.maximum((torch.sigmoid(drawn) - cumulative[:-1]).abs(), (torch.sigmoid(drawn) - cumulative[1:]).abs())
    assert gap.max() < 1.95 / n**0.5  # Kolmogorov and Smirnov's test at 0.1 %
    assert drawn.isfinite().all() and drawn.abs().max() < 17


@on_the_cpu
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


@on_the_cpu
def test_noise_that_rounding_could_make_infinite_is_bounded():
    # the greatest u below p = 0.386 gives u / p = 1 in float32
    noise = noise_of(0.386, rows=2**14, columns=2**11, blocks=((0, 2**11),))
    assert noise.isfinite().all() and noise.abs().max() < 17


@pytest.mark.parametrize("name", WIDTHS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@on_the_cpu
def test_the_same_seed_gives_the_same_noise_on_every_target(name, dtype, monkeypatch):
    given = {"rows": 50, "columns": 45, "blocks": ((0, 13), (13, 20), (30, 43)), "dtype": dtype}
    expected = noise_of(**given)
    monkeypatch.setenv("GATEDRNN_CPU", name)
    found = noise_of(**given)
    assert torch.equal(found != 0, expected != 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@on_the_cpu
def test_float32_and_float64_draw_the_same_elements():
    single, double = (noise_of(dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert torch.equal(single != 0, double != 0)
    torch.testing.assert_close(torch.sigmoid(single.double()), torch.sigmoid(double), rtol=0, atol=1e-6)


@on_the_cpu
def test_the_same_noise_with_one_thread_and_two():
    given = {"rows": 1000, "columns": 700, "blocks": ((0, 300), (400, 700))}
    before, found = torch.get_num_threads(), []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        found.append(noise_of(**given))
    torch.set_num_threads(before)
    assert torch.equal(*found) and torch.count_nonzero(found[0])


@pytest.mark.parametrize("width", [1, 2, 3, 5, 12, 17, 33])
@on_the_cpu
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


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("lengths", [None, [2, 6, 4]], ids=["whole", "ragged"])
@pytest.mark.parametrize("make", [G2LSTM, ONLSTM])
def test_every_backend_has_the_noise_of_the_reference(make, lengths, backend, monkeypatch):
    if backend == "triton":
        pytest.importorskip("triton", minversion="3.4")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    elif NO_KERNEL is not None:
        pytest.skip(NO_KERNEL)
    layer = make(7, 12, gates=Gates(temperature=0.9, noise_probability=0.5), dtype=torch.float64)
    x, found = torch.randn(6, 3, 7, dtype=torch.float64), []
    for layer.backend in (backend, "reference"):
        torch.manual_seed(11)
        output = layer(x, lengths=lengths)[0]
        found.append([output, *torch.autograd.grad((output**2).sum(), list(layer.parameters())), torch.rand(3)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_it_does_not_depend_on_what_is_drawn_beside_it():
    """A row has its noise whatever the number of rows; gates have their own, and sampled noise is that of the seed."""
    spec = ONLSTM(7, 12, chunk_size=3).spec
    gates = Gates(noise_probability=1.0)
    long, short = (draw_noise(spec, gates, steps, 3, SEED, torch.float64) for steps in (9, 4))
    assert torch.equal(long[:4], short)
    blocks = long.flatten(0, 1).split([gate.rows for gate in spec.gates], -1)
    perturbed = [block for gate, block in zip(spec.gates, blocks, strict=True) if gate.name in spec.perturbed(gates)]
    assert len(perturbed) > 3 and all(
        not torch.equal(a[:, :4], b[:, :4]) for k, a in enumerate(perturbed) for b in perturbed[:k]
    )


def test_the_seed_is_given_and_comes_from_the_generator():
    device = torch.device("cpu")
    first, same, other = (draw_seed(device, torch.Generator().manual_seed(k)) for k in (3, 3, 4))
    assert torch.equal(first, same) and not torch.equal(first, other) and first.dtype == torch.int64
    before = torch.get_rng_state()
    draw_noise(CELLS["g2lstm"].make_spec(4), CELLS["g2lstm"].gates, 2, 2, first)
    assert torch.equal(torch.get_rng_state(), before)
    layer = G2LSTM(3, 4)
    noise = layer.sample_noise(2, 2, torch.Generator().manual_seed(3))[0]
    assert torch.equal(noise, draw_noise(layer.spec, layer.gates, 2, 2, first))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [2, 1_234_567, 2**23 - 1])
def test_the_references_noise_is_bounded_however_near_a_number_is_to_the_probability(place, dtype):
    u = (torch.arange(place - 2, place + 1) + 0.5).to(dtype) * 2.0**-23
    noise = logistic_noise(u, float(u[-1]) * (1 + 1e-12))
    assert noise.isfinite().all() and noise.abs().max() < 16.7
