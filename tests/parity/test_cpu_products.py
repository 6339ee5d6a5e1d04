"""The packed product by itself: every target and precision against float64, within its bound and within its memory."""

import array
import functools
import inspect

import pytest

pytest.importorskip("numba")

import torch
from numba.core import types

from gatedrnn.sequence.backends.cpu.compile import build
from gatedrnn.sequence.backends.cpu.compile.records import Matrix, Panels, Plain, Work
from gatedrnn.sequence.backends.cpu.matmul.direct import multiply_direct
from gatedrnn.sequence.backends.cpu.matmul.multiply import multiply, multiply_transposed, pack_transposed
from gatedrnn.sequence.backends.cpu.matmul.panels import ceil_div, depth, pack, rows_at_once, share
from gatedrnn.sequence.backends.cpu.matmul.sizes import KINDS as PACKED
from gatedrnn.sequence.backends.cpu.matmul.sizes import MATRIX_ROWS, TOKENS, round_up
from gatedrnn.sequence.backends.cpu.matmul.sizes import depth as panel_depth
from gatedrnn.sequence.backends.cpu.matmul.tiling import barrier, keep, restore, thread, threads
from gatedrnn.sequence.backends.cpu.runtime import memory, team
from gatedrnn.sequence.backends.cpu.runtime.target import targets
from gatedrnn.sequence.backends.cpu.vector.simd import Ptr
from gatedrnn.sequence.backends.cpu.vector.tiles import tile_module

KINDS = ("f32", "f64", "bf16")
GUARD = 64  # elements before and after
SIZES = [
    (1, 1, 1), (1, 300, 2), (3, 5, 2), (12, 32, 32), (13, 33, 31), (32, 31, 33), (97, 13, 97), (97, 33, 300), (300, 1, 5),
    (300, 97, 33), (2, 300, 300), (33, 32, 1),
]  # fmt: skip
WIDTHS = {
    target.lanes: name for name, target in targets().items()
}  # targets that differ in bfloat16 only share the rest
every_product = pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in targets() for kind in KINDS if kind == "bf16" or name in WIDTHS.values()],
)


def _product(
    right_transposed, left_transposed, M, N, K, shift, scaled, lda, ldb, ldc, add, panel, tall, room, A, B, scale, P, C, sums,
    edge, left,
):  # fmt: skip
    q, parts = thread(), threads()
    own_edge, own_left = edge + q * (16 + tall * panel), left + q * room
    work = Work(panel, tall, own_edge + 16, own_left, own_edge, q, parts)
    keep(own_edge)
    panels, strips = ceil_div(N, panel), ceil_div(M, tall)
    first, last = share(panels, q, parts), share(panels, q + 1, parts)
    if right_transposed:
        pack_transposed(B, ldb, K, N, shift, scale, scaled, P, panel, first, last)
    else:
        pack(B, ldb, K, N, shift, P, depth(P, K), panel, first, last)
    barrier()
    if left_transposed:
        first, last = share(strips, q, parts), share(strips, q + 1, parts)
        multiply_transposed(Matrix(A, lda), M, Panels(P, K, N), Matrix(C, ldc), first, last, add, sums, work)
    else:
        multiply(Matrix(A, lda), M, Panels(P, K, N), Matrix(C, ldc), first, last, add, work)
    restore(own_edge)


def _forward_product(M, N, K, shift, scaled, lda, ldb, ldc, add, panel, tall, room, A, B, scale, P, C, edge, left):
    """What `split` has: the product of a forward pass."""
    q, parts = thread(), threads()
    own_edge, own_left = edge + q * (16 + tall * panel), left + q * room
    work = Work(panel, tall, own_edge + 16, own_left, own_edge, q, parts)
    keep(own_edge)
    panels = ceil_div(N, panel)
    first, last = share(panels, q, parts), share(panels, q + 1, parts)
    pack_transposed(B, ldb, K, N, shift, scale, scaled, P, panel, first, last)
    barrier()
    multiply(Matrix(A, lda), M, Panels(P, K, N), Matrix(C, ldc), first, last, add, work)
    restore(own_edge)


def _direct_product(M, N, K, shift, scaled, lda, ldc, back, A, W, scale, C):
    work = Work(0, 0, A, A, A, thread(), threads())
    multiply_direct(Matrix(A, lda), M, Plain(W, K, N, shift, scale, scaled), Matrix(C, ldc), back, work)


@functools.cache
def compiled(name, kind, direct=False):
    """The address of the product, and the names of its arguments, for a target and precision."""
    team.link()
    target = targets()[name]
    real = Ptr(types.float64, target.lanes // 2) if kind == "f64" else Ptr(types.float32, target.lanes)
    packed = {"bf16": Ptr(types.uint32, target.lanes), "split": Ptr(types.int32, target.lanes)}.get(kind, real)
    function = _direct_product if direct else _forward_product if kind == "split" else _product
    names = list(inspect.signature(function).parameters)
    pointers = {
        "A": real,
        "B": real,
        "W": real,
        "scale": real,
        "P": packed,
        "C": real,
        "sums": real,
        "edge": real,
        "left": packed,
    }
    arguments = [pointers.get(argument, types.intp) for argument in names]
    code = build.compile_entry(function, arguments, target, tile_module(target, kind))
    return build.load([code], "entry", target), names


def nan_filled(count, dtype):
    """`count` elements on a cache line, NaN like the guards around them; pairs of bfloat16 NaN for int32."""
    whole = memory.aligned(count + 2 * GUARD, dtype)
    whole.fill_(0x7FC07FC0 if dtype == torch.int32 else torch.nan)
    return whole, whole[GUARD : GUARD + count]


def matrix(values, stride):
    """The memory, and a view of it as `values`, rows `stride` apart with NaN between."""
    rows, columns = values.shape
    whole, inner = nan_filled(rows * stride, values.dtype)
    view = inner.view(rows, stride)[:, :columns]
    view.copy_(values)
    return whole, view


def untouched(whole, view):
    """Whether everything but `view` is still NaN."""
    rest = whole.clone()
    offset = view.storage_offset() - whole.storage_offset()
    rest.as_strided(view.shape, view.stride(), rest.storage_offset() + offset).fill_(torch.nan)
    return bool(rest.isnan().all())


def multiplied(
    name, kind, A, B, *, add=None, scale=None, shift=0, right_transposed=False, left_transposed=False, team_size=1
):
    """C and the sums over k of A, after what lies around them was found untouched. A [M, K] (or [K, M]), B [K, N] (or [N, K])."""
    target = targets()[name]
    panel = target.panel // (2 if kind == "f64" else 1)
    tall = MATRIX_ROWS if kind in ("bf16", "split") and target.half == "amx" else target.rows
    element = PACKED[kind]
    M, K = A.shape[::-1] if left_transposed else A.shape
    N = B.shape[0] if right_transposed else B.shape[1]
    deep = panel_depth(K, kind)
    a, b = matrix(A, A.shape[1] + 3), matrix(B, B.shape[1] + 5)
    c = matrix(torch.full((M, N), torch.nan, dtype=A.dtype) if add is None else add, N + 2)
    sums = nan_filled(M, A.dtype)
    sums[1].zero_()
    scales = matrix(torch.zeros(1, N, dtype=A.dtype) if scale is None else scale[None], N)
    room = rows_at_once.py_func(tall) * max(deep, TOKENS)
    P, edge = nan_filled(round_up(N, panel) * deep, element), nan_filled(team_size * (16 + tall * panel), A.dtype)
    left = nan_filled(team_size * room, element)
    values = {
        "right_transposed": right_transposed, "left_transposed": left_transposed, "M": M, "N": N, "K": K, "shift": shift,
        "scaled": scale is not None, "lda": a[1].stride(0), "ldb": b[1].stride(0), "ldc": c[1].stride(0), "add": add is not None,
        "panel": panel, "tall": tall, "room": room, "A": a[1], "B": b[1], "scale": scales[1], "P": P[1], "C": c[1],
        "sums": sums[1], "edge": edge[1], "left": left[1],
    }  # fmt: skip
    address, names = compiled(name, kind)
    given = [values[argument] for argument in names]
    arguments = array.array("q", [v.data_ptr() if isinstance(v, torch.Tensor) else int(v) for v in given])
    team.run(address, arguments, team_size)
    assert torch.equal(a[1], A) or A.isnan().any()
    assert torch.equal(b[1], B)
    for whole, view in (a, b, c, sums, edge):
        assert untouched(whole, view)
    for whole, view in (P, left):
        guards = torch.cat([whole[:GUARD], whole[GUARD + len(view) :]])
        assert bool((guards == 0x7FC07FC0).all() if element == torch.int32 else guards.isnan().all())
    return c[1].clone(), sums[1].clone()


def expected(kind, A, B, *, add=None, scale=None, shift=0, right_transposed=False, left_transposed=False, team_size=1):
    """The product in float64 of what the kernel is given, and the bound of a sum of K rounded products and an addition."""
    B = B.roll(-shift, 0)
    if right_transposed:
        B = (B if scale is None else B * scale[:, None]).t()
    A = A.t() if left_transposed else A
    K = A.shape[1]
    if kind == "bf16":
        A, B = A.bfloat16(), B.bfloat16()
    A, B = A.double(), B.double()
    more = 0.0 if add is None else add.double()
    unit = 2.0**-53 if kind == "f64" else 2.0**-24
    terms = 3 * K if kind == "split" else K
    bound = (terms + 4) * unit * (A.abs() @ B.abs() + abs(more))
    if kind == "split":  # both second parts rounded, and their product left out
        bound += 3 * 2.0**-16 * (A.abs() @ B.abs())
    return A @ B + more, bound


def check(name, kind, A, B, **given):
    C, sums = multiplied(name, kind, A, B, **given)
    exact, bound = expected(kind, A, B, **given)
    assert ((C - exact).abs() <= bound).all(), (A.shape, B.shape, given.keys())
    if given.get("left_transposed"):
        unit = 2.0**-53 if kind == "f64" else 2.0**-24
        assert ((sums - A.double().sum(0)).abs() <= (len(A) + 4) * unit * A.double().abs().sum(0)).all()


def drawn(kind, *shape):
    return torch.randn(shape, dtype=torch.float64 if kind == "f64" else torch.float32)


@every_product
def test_products_are_right_and_touch_nothing_else(name, kind):
    torch.manual_seed(1)
    for M, N, K in SIZES:
        A, B, add = drawn(kind, M, K), drawn(kind, K, N), drawn(kind, M, N)
        check(name, kind, A, B)
        check(name, kind, A, B, add=add)
        check(name, kind, A, B.t().contiguous(), add=add, right_transposed=True)
        check(name, kind, A.t().contiguous(), B, add=add, left_transposed=True)


@every_product
def test_rows_begin_where_they_are_told_and_columns_are_scaled(name, kind):
    torch.manual_seed(2)
    for M, N, K in [(5, 33, 31), (13, 97, 12), (3, 12, 97), (2, 3, 5)]:
        A, B, scale = drawn(kind, M, K), drawn(kind, K, N), drawn(kind, N)
        for part in (1, 2):
            check(name, kind, A, B, shift=part * K // 3)
            given = {"shift": part * N // 3, "right_transposed": True}
            check(name, kind, A, B.t().contiguous(), **given)
            check(name, kind, A, B.t().contiguous(), scale=scale, **given)


@every_product
def test_two_threads_share_a_product(name, kind):
    torch.manual_seed(3)
    if team._openmp() is None:
        pytest.skip("no pool of threads to borrow")
    for M, N, K in [(1, 1, 1), (33, 97, 31), (97, 13, 300), (300, 97, 33)]:
        A, B = drawn(kind, M, K), drawn(kind, K, N)
        for flags in ({}, {"left_transposed": True}, {"right_transposed": True}):
            a = A.t().contiguous() if "left_transposed" in flags else A
            b = B.t().contiguous() if "right_transposed" in flags else B
            check(name, kind, a, b, team_size=2, **flags)
            assert torch.equal(*(multiplied(name, kind, a, b, team_size=size, **flags)[0] for size in (1, 2)))


@every_product
def test_nan_and_infinity_stay_in_their_row(name, kind):
    torch.manual_seed(4)
    M, N, K = 14, 35, 33
    A, B = drawn(kind, M, K), drawn(kind, K, N)
    A[3, 7], A[5, 32] = torch.nan, torch.inf
    C, _ = multiplied(name, kind, A, B)
    assert C[3].isnan().all() and C[5].isinf().all()
    assert C[[m for m in range(M) if m not in (3, 5)]].isfinite().all()
    C, _ = multiplied(name, kind, A.t().contiguous(), B, left_transposed=True)
    assert C[3].isnan().all() and C[5].isinf().all()
    assert C[[m for m in range(M) if m not in (3, 5)]].isfinite().all()


@pytest.mark.skipif("amx" not in targets(), reason="this CPU has no matrix registers")
def test_split_products_are_nearly_float32_and_touch_nothing_else():
    torch.manual_seed(5)
    for M, N, K in [*SIZES, (200, 70, 2100)]:
        A, B, scale = drawn("split", M, K), drawn("split", N, K), drawn("split", N)
        for given in ({}, {"add": drawn("split", M, N)}, {"scale": scale, "shift": N // 3}, {"team_size": 2}):
            if "team_size" in given and team._openmp() is None:
                continue
            check("amx", "split", A, B, right_transposed=True, **given)
    A, B = drawn("split", 40, 1150), drawn("split", 33, 1150)
    errors = {}
    for kind in ("f32", "split", "bf16"):
        exact = A.double() @ B.double().t()
        errors[kind] = float((multiplied("amx", kind, A, B, right_transposed=True)[0] - exact).abs().max())
    assert errors["split"] < 40 * errors["f32"] and errors["split"] < errors["bf16"] / 300


@pytest.mark.skipif("amx" not in targets(), reason="this CPU has no matrix registers")
def test_what_is_not_finite_stays_in_its_row_of_a_split_product():
    torch.manual_seed(6)
    A, B = drawn("split", 14, 33), drawn("split", 35, 33)
    A[3, 7], A[5, 32] = torch.nan, torch.inf
    C, _ = multiplied("amx", "split", A, B, right_transposed=True)
    assert C[3].isnan().all() and not C[5].isfinite().any()
    assert C[[m for m in range(14) if m not in (3, 5)]].isfinite().all()


@pytest.mark.parametrize("name", targets())
def test_bfloat16_rounds_to_the_nearest_even(name):
    values = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-8 + 2.0**-20, -1.0 - 2.0**-8, 3.4e38, 1e-30])
    ones = torch.eye(len(values))
    C, _ = multiplied(name, "bf16", torch.diag(values), ones)
    assert torch.equal(C.diagonal(), values.bfloat16().float())
    C, _ = multiplied(name, "bf16", ones, torch.diag(values), right_transposed=True)
    assert torch.equal(C.diagonal(), values.bfloat16().float())


def directly(name, A, W, add, *, scale=None, shift=0, back=False, team_size=1):
    """C of a weight that is not packed, after what lies around every matrix was found untouched."""
    (M, K), N = A.shape, len(W)
    kind = "f64" if A.dtype == torch.float64 else "f32"
    a, w, c, scales = (
        matrix(A, K + 3),
        matrix(W, K),
        matrix(add, N + 2),
        matrix(add[:1] if scale is None else scale[None], N),
    )
    address, names = compiled(name, kind, direct=True)
    values = {
        "M": M, "N": N, "K": K, "shift": shift, "scaled": scale is not None, "lda": K + 3, "ldc": N + 2, "back": back, "A": a[1],
        "W": w[1], "scale": scales[1], "C": c[1],
    }  # fmt: skip
    given = [values[argument] for argument in names]
    arguments = array.array("q", [v.data_ptr() if isinstance(v, torch.Tensor) else int(v) for v in given])
    team.run(address, arguments, team_size)
    assert all(untouched(*memory) for memory in (a, w, c))
    assert torch.equal(a[1], A) and torch.equal(w[1], W)
    return c[1].clone()


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", WIDTHS.values())
def test_a_row_of_a_direct_product_depends_on_no_other_row_thread_or_order(name, kind):
    torch.manual_seed(7)
    for M, N, K in [
        (1, 1, 1),
        (1, 12, 16),
        (2, 13, 5),
        (3, 24, 31),
        (7, 24, 40),
        (8, 48, 33),
        (11, 50, 100),
        (30, 97, 130),
    ]:
        A, W, add, factors = drawn(kind, M, K), drawn(kind, N, K), drawn(kind, M, N), drawn(kind, N)
        for scale, shift in ((None, 0), (factors, 0), (None, N // 3), (factors, N - 1)):
            given = {"scale": scale, "shift": shift}
            C = directly(name, A, W, add, **given)
            exact, bound = expected(kind, A, W, add=add, right_transposed=True, **given)
            assert ((C - exact).abs() <= bound).all(), (M, N, K, shift)
            assert torch.equal(C, directly(name, A, W, add, back=True, **given))
            rows = [directly(name, A[m : m + 1], W, add[m : m + 1], **given) for m in range(M)]
            assert torch.equal(C, torch.cat(rows)), (M, N, K, shift)
            if team._openmp() is not None:
                assert torch.equal(C, directly(name, A, W, add, team_size=2, **given))
