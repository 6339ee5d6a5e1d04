"""No kernel of the CPU reads or writes beyond what it is given: every tensor lies alone between two pages without access.

In one pass each ends where a page without access begins, in the other it begins where one ends. The kernels run in a child
process, which a wrong access ends with a signal: a failed test, not a dead suite. What is packed or lent begins on a cache line,
as the kernels may expect, and so may lie up to 63 bytes before the end.
"""

import ctypes
import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba")

import torch
from harness import KINDS, RAGGED, SIZES, VARIANTS, inputs_for, make, measure, same_bits

from gatedrnn import Gates

ROOT = Path(__file__).resolve().parents[2]
SIDES = ("end", "begin")
PAGE, LINE, NO_ACCESS = 4096, 64, 0
ON_A_LINE = ("PW", "PU")  # tables of small forms
OTHERS = {"loss", "noise", "compressed", "bfloat16 products", "bfloat16 weights"}
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mmap and mprotect as Linux has them")


class Guard:
    """Memory between two pages without access, and the kernels' calls led through it.

    Args:
        side: where the tensor touches such a page, "end" or "begin".
        short: the name of an argument whose last 8 bytes lie beyond: what must be caught.
    """

    def __init__(self, side, short=None):
        self.side, self.short, self.calls = side, short, 0
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.mapped = []

    def take(self, size, line=False, short=0):
        """Address of `size` bytes between two pages without access."""
        pages = max(1, -(-size // PAGE))
        whole = (pages + 2) * PAGE
        base = self.libc.mmap(None, whole, 3, 0x22, -1, 0)  # to read and write; private, of no file
        assert base not in (None, ctypes.c_void_p(-1).value), "mmap"
        for page in (base, base + whole - PAGE):
            assert self.libc.mprotect(page, PAGE, NO_ACCESS) == 0, "mprotect"
        self.mapped.append((base, whole))
        ctypes.memset(base + PAGE, 0xFF, pages * PAGE)  # NaN
        if self.side == "begin":
            return base + PAGE
        address = base + whole - PAGE - size + short
        return address // LINE * LINE if line else address

    def moved(self, values):
        """The same arguments, tensors as addresses of copies; and what copies them back."""
        places, found = {}, {}
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                found[name] = value
                continue
            assert value.is_contiguous(), f"{name} has gaps: a kernel is given its address alone"
            key = value.data_ptr() if value.numel() else name
            if key not in places or places[key][1].nbytes < value.nbytes:
                short = 8 if name == self.short else 0
                address = self.take(value.nbytes, name in ON_A_LINE, short)
                ctypes.memmove(address, value.data_ptr(), value.nbytes - short)
                places[key] = address, value
            found[name] = places[key][0]

        def back():
            for address, value in places.values():
                ctypes.memmove(value.data_ptr(), address, value.nbytes)

        return found, back

    def free(self):
        for base, whole in self.mapped:
            self.libc.munmap(base, whole)
        self.mapped.clear()

    @contextmanager
    def around_kernels(self):
        """Every call of a kernel goes through guarded memory."""
        from gatedrnn.sequence.backends.cpu.compile import kernels
        from gatedrnn.sequence.backends.cpu.recurrence import arguments
        from gatedrnn.sequence.backends.cpu.runtime import memory

        missing = [
            f"{owner.__name__}.{name}"
            for owner, name in ((arguments.Loop, "__call__"), (kernels.Kernel, "__call__"), (memory, "lend"))
            if not hasattr(owner, name)
        ]
        assert not missing, f"kernels are called in another way now: {missing} are gone; lead the new way through Guard"
        loop, kernel, lend = arguments.Loop.__call__, kernels.Kernel.__call__, memory.lend

        def guarded_loop(run, values):
            self.calls += 1
            found, back = self.moved(values)
            names = {place: name for name, place in run.places.items()}
            ends = [start for _, start in run.rooms[1:]] + [run.room_bytes]
            for (place, start), end in zip(run.rooms, ends, strict=True):
                found[names[place]] = self.take(end - start, line=True)
            loop(replace(run, rooms=(), room_bytes=0), found)
            back()
            self.free()

        def guarded_kernel(run, threads, values):
            self.calls += 1
            found, back = self.moved(values)
            kernel(run, threads, found)
            back()
            self.free()

        def guarded_lend(size):
            address = self.take(size + memory.LINE_BYTES, line=True)
            return SimpleNamespace(data_ptr=lambda: address)

        arguments.Loop.__call__, kernels.Kernel.__call__, memory.lend = guarded_loop, guarded_kernel, guarded_lend
        try:
            yield
        finally:
            arguments.Loop.__call__, kernels.Kernel.__call__, memory.lend = loop, kernel, lend


def calls_of(name):
    """What to run of a variant in a precision, or of `OTHERS`: functions that give values by name."""
    if name in OTHERS:
        return OTHER_CALLS[name]()
    variant, _, precision = name.rpartition(" ")
    return _calls_of_cell(variant, getattr(torch, precision))


def _calls_of_cell(variant, dtype):
    for steps, size, width, hidden in [*SIZES, (3, 1, 7, 17), (20, 17, 64, 70)]:
        torch.set_num_threads(2 if hidden == 70 else 1)
        layer = make(variant, width, hidden, 2, bidirectional=True, dtype=dtype, gates=None)
        x, states = inputs_for(layer, steps, size)
        ragged = [1 + (5 * row + 2) % steps for row in range(size)] if steps > 1 else None
        for lengths in (None, ragged):
            yield lambda a=(layer, "cpu", x, states), n=lengths: measure(*a, lengths=n)
            yield lambda a=(layer, x, states), n=lengths: _inferred(*a, n)
    if dtype == torch.float32:
        yield from _more_calls_of_cell(variant)


def _more_calls_of_cell(variant):
    if not variant.startswith("rnn-"):
        gates = Gates(temperature=0.7, evaluation_temperature=0.7, noise_probability=0.5)
        layer = make(variant, 40, 35, dtype=torch.float32, training=True, gates=gates)
        x, states = inputs_for(layer, 4, 33)
        noise = layer.sample_noise(4, 33, torch.Generator().manual_seed(4))
        yield lambda: measure(layer, "cpu", x, states, noise=noise)
        yield lambda: measure(layer.eval(), "cpu", x, states, lengths=RAGGED[33])
    layer = make(variant, 7, 15, bias=False, dtype=torch.float32)
    x, _ = inputs_for(layer)
    yield lambda: _inferred(layer, x, None, None)
    yield lambda: _inferred(layer, x[:, :0], None, None)


def _inferred(layer, x, states, lengths):
    layer.backend = "cpu"
    hx = None if not states else tuple(states) if len(states) > 1 else states[0]
    with torch.no_grad():
        output, finals = layer(x, hx, lengths=lengths)
    return {"output": output, **dict(enumerate(finals if isinstance(finals, tuple) else (finals,)))}


def _loss():
    from gatedrnn.models.loss import chunked_cross_entropy

    def run(rows, width, vocabulary, dtype):
        random = torch.Generator().manual_seed(5)
        shapes = ((rows, width), (vocabulary, width), (vocabulary,))
        given = [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]
        loss = chunked_cross_entropy(*given, torch.randint(vocabulary, (rows,), generator=random))
        return {"loss": loss.detach(), **dict(enumerate(torch.autograd.grad(loss, given)))}

    for sizes in ((1, 1, 1), (5, 7, 11), (33, 16, 1001), (40, 3, 17)):
        for dtype in (torch.float32, torch.float64):
            yield lambda s=sizes, d=dtype: run(*s, d)


def _noise():
    for variant in ("lstm", "gru-after", "onlstm-chunks-free"):
        for dtype in (torch.float32, torch.float64):
            gates = Gates(noise_probability=0.5)
            layer = make(variant, 7, 15, dtype=dtype, training=True, gates=gates)
            x, states = inputs_for(layer)
            for lengths in (None, RAGGED[3]):

                def run(layer=layer, x=x, states=states, lengths=lengths):
                    torch.manual_seed(6)
                    return measure(layer, "cpu", x, states, lengths=lengths)

                yield run


def _compressed():
    from gatedrnn.weights.compressed import CompressedWeight
    from gatedrnn.weights.forms import SMALL, Block, low_rank

    def weight(values, form):
        name, parts = low_rank(values, 3) if form == "factors" else (form, SMALL[form](values))
        return CompressedWeight([Block(0, len(values), name, parts)], values.shape[1])

    for variant in ("lstm", "gru-after", "gru-before", "onlstm-chunks"):
        for form in (*SMALL, "factors"):
            for size in (1, 3):
                layer = make(variant, 13, 15, dtype=torch.float32)
                for name in ("weight_ih_l0", "weight_hh_l0"):
                    given = weight(getattr(layer, name).detach(), form)
                    setattr(layer, name, torch.nn.Parameter(given, requires_grad=False))
                x, states = inputs_for(make(variant, 13, 15, dtype=torch.float32), 4, size)
                yield lambda a=(layer, x, states): _inferred(*a, None)
    for form in (*SMALL, "factors"):
        random = torch.Generator().manual_seed(7)
        values = weight(torch.randn(37, 13, generator=random), form)
        x = torch.randn(5, 13, generator=random)
        yield lambda w=values, x=x: {"out": torch.nn.functional.linear(x, w)}
        yield lambda w=values, x=x: {"out": torch.nn.functional.linear(x[:1], w, torch.ones(37))}


def _bfloat16_products():
    for variant in KINDS:
        layer = make(variant, 40, 35, bidirectional=True, dtype=torch.float32)
        x, states = inputs_for(layer, 4, 33)

        def run(layer=layer, x=x, states=states):
            with torch.autocast("cpu", torch.bfloat16):
                return measure(layer, "cpu", x, states, lengths=RAGGED[33])

        yield run


def _bfloat16_weights():
    for variant in KINDS:
        layer = make(variant, 13, 15, dtype=torch.bfloat16)
        for size in (1, 3):
            x, states = inputs_for(layer, 4, size)
            yield lambda a=(layer, x, states), n=[2, 4, 3][-size:]: _inferred(*a, n)


OTHER_CALLS = {"loss": _loss, "noise": _noise, "compressed": _compressed, "bfloat16 products": _bfloat16_products}
OTHER_CALLS |= {"bfloat16 weights": _bfloat16_weights}


def serve():
    """The child: a line of sides, name and what is short; back comes the number of kernels called, or what differs."""
    for line in sys.stdin:
        sides, name, short = json.loads(line)
        calls, expected = 0, []
        try:
            for side in sides:
                print(f"gatedrnn's memory touches no other at its {side}", file=sys.stderr, flush=True)
                torch.set_num_threads(1)
                guard = Guard(side, short)
                for place, call in enumerate(calls_of(name)):
                    if place == len(expected):
                        expected.append(call())
                    with guard.around_kernels():
                        found = call()
                    same_bits(found, expected[place])
                calls += guard.calls
            answer = calls
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


@pytest.fixture(scope="module")
def child():
    started = []

    def ask(*question):
        if not started or started[-1].poll() is not None:
            paths = [str(Path(__file__).parent), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1"}
            environment["GOMP_SPINCOUNT"] = "0"  # threads that wait leave the core to the others
            code = "import test_guard_pages; test_guard_pages.serve()"
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT, **pipes))
        process = started[-1]
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 300)[0], "no answer"
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        process.wait(30)
        *_, last = process.stderr.read().split("gatedrnn's memory")
        said = [entry.strip() for entry in last.splitlines() if "gatedrnn" in entry or "at its" in entry][:7]
        return f"died of signal {-process.returncode}: {' | '.join(said)}"

    yield ask
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


NAMES = [*(f"{variant} float32" for variant in VARIANTS), *(f"{variant} float64" for variant in KINDS)]
"""Every cell in one precision, one of each kind in the other: a loop is written once for both."""


@linux
@pytest.mark.parametrize("name", [*NAMES, *sorted(OTHERS)])
def test_kernels_stay_within_what_they_are_given(child, name):
    answer = child(SIDES, name, None)
    assert isinstance(answer, int) and answer > 0, answer


@linux
@pytest.mark.parametrize("short", ["x", "out", "G", "bias"])
def test_an_access_beyond_the_end_is_caught(child, short):
    answer = child(["end"], "lstm float32", short)
    assert isinstance(answer, str) and "signal 11" in answer
