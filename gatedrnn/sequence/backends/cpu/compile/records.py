"""What products and loops pass on, as named records; and the one table of all that a loop is called with.

A loop is called with numbers and addresses, 8 bytes each, in the order of this table: the names that callers give, the types
that it is compiled for, and its records all come from here.
Dimensions: T steps, N tokens, B batch, D input, H hidden, G columns of gates, rows of which are L apart; S·H kept beside h.
"""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple


class Matrix(NamedTuple):
    """Rows of reals in memory: where the first begins, and the distance between them."""

    at: Any
    ld: Any


class Panels(NamedTuple):
    """A packed right factor [K, N]; see `matmul.panels`."""

    at: Any
    K: Any
    N: Any


class Plain(NamedTuple):
    """A weight [N, K] as it lies, the right factor's transpose: row n + shift is its column n, times scale[n] if `scaled`."""

    at: Any
    K: Any
    N: Any
    shift: Any
    scale: Any
    scaled: Any


class Past(NamedTuple):
    """States: that before token n is at[prev[n]], or row −1 − prev[n] of `first`."""

    at: Any
    ld: Any
    first: Any
    prev: Any


class Gradients(NamedTuple):
    """Of h and of the gates' values, from outside, as `Matrix`; of the states, by row of the batch; of what gates are made of, by
    token; of the extras."""

    h: Any
    g: Any
    dh: Any
    dc: Any
    dG: Any
    d_extra: Any


class Own(NamedTuple):
    """What only a cell knows: its extras, a row's scratch, K and C."""

    extra: Any
    scratch: Any
    K: Any
    C: Any


class Work(NamedTuple):
    """A thread's own: a tile's columns and rows; scratch for a tile, for a left factor in another precision, and for rows; which
    thread it is, of how many."""

    panel: Any
    tall: Any
    edge: Any
    left: Any
    row: Any
    q: Any
    parts: Any


class Product(NamedTuple):
    """A row of `products`: as `plan.Product` has it, and whether its left factor's gradient is added to what is there."""

    level: Any
    row: Any
    rows: Any
    column: Any
    left: Any
    add: Any


@dataclass(frozen=True)
class Record:
    """Arguments that go together: their names and kinds ("int", "index" for int64s, "real", "weight" for reals or bfloat16,
    "packed" as the products'), in order.

    Args: made: the record's type; text: a line each: name, kind, meaning and shape.
    """

    made: Any
    kinds: tuple[str, ...]

    @staticmethod
    def of(name: str, text: str) -> "Record":
        """The record that the lines describe."""
        lines = [line.split(None, 2) for line in text.strip().splitlines()]
        return Record(namedtuple(name, [line[0] for line in lines]), tuple(line[1] for line in lines))


_SIZES = """
T           int    steps
D           int    inputs
H           int    hidden units
K           int    logits of a gate of another size, else H
C           int    units that a value of such a gate serves, else 1
reverse     int    whether from each row's last step to its first
cells       int    S, rows of H that a token keeps beside h, side by side in `cs`: further states, then left factors inside
columns     int    G
columns_x   int    columns, from 0, that W x, noise and bias are written to
u_column    int    the first column that U h' and b_hh are added to
products    index  a `Product` each: those with U and the matrices below it, by level
count       int    how many
levels      int    of them, each with a part of the step after it
shift       int    column n belongs to row n + shift of W, the last ones to its first rows
ldg         int    L
scaled      int    whether `scale` counts
ranges      index  level, first column, columns: whose gradients are there from that level on, and scaled then
ranged      int    how many
by_rows     int    whether each thread keeps to its rows of the batch at all steps, and waits for no other
"""
_TOKENS = """
offsets     index  first token of each step, and N [T + 1]
prev        index  the token before each in its sequence, or −1 − b where that is initial state b [N]
"""
_SCRATCH = """
panel       int    columns of a panel
tall        int    rows of a tile
scratch     real   of every thread: registers' layout, a tile, a row's scratch
scratch_size int   a thread's, in elements
left        packed of every thread: left factors in the products' precision
left_size   int    a thread's, in elements
"""
_WEIGHTS = """
W           weight [G_x, D]
U           weight U and the cell's own matrices below it [R, H]
PW          packed room for W's panels, or the table of its pieces
PU          packed of U's
direct_w    int    whether W is read as it lies
direct_u    int    whether U is
scale       real   of each column [G]
bias        real   of each column [G], or b_ih by row if `two_biases`
bias_h      real   b_hh by row
two_biases  int    whether b_ih and b_hh are given
extra       real   all extras, scaled
"""
_GIVEN = """
x           real   [N, D]
h0          real   [B, H]
c0          real   [B, S·H]
noise       real   what is added to columns_x [N, G_x], if `noisy`
noisy       int
blocks      int    of noise that is drawn
seed        int    of it
starts      index  first and last + 1 column of each block
chance      real   p, 1 / p, scale
"""
_MADE = """
G           real   gates' values [N, L]
out         real   h [N, H]
cs          real   [N, S·H]
hn          real   [B, H]
cn          real   [B, S·H]
"""
_KEPT = """
x           real   [N, D]
h0          real   [B, H]
c0          real   [B, S·H]
W           real   [G_x, D]
U           real   [R, H]
P           packed room for whichever is the larger transposed
scale       real   of each column [G]
extra       real   all extras, scaled
G           real   gates' values [N, L]
out         real   h [N, H]
cs          real   [N, S·H]
"""
_GIVEN_BACK = """
grad_h      real   gradient of `out` [N, H]
grad_h_stride int    between its rows; 0 for one of zeros
grad_g      real   gradient of the gates' values [N, L]
grad_g_stride int    between its rows; 0 for one of zeros
"""
_MADE_BACK = """
dh          real   gradient of h_n, then of h_0 [B, H]
dc          real   the same of the rest [B, S·H]
dG          real   of what the gates are made of [N, L]
dx          real   [N, D]
dW          real   [G_x, D]
dU          real   [R, H]
db_x        real   sums of the columns of W x
db_h        real   sums of those of each row of U
d_extra     real   two rows for each thread: of its last tokens, of those before
extra_size  int    of such a row
shared      packed room for a block of tokens' panels
need_dx     int    whether dx is wanted
need_dw     int    whether dW is
need_du     int    whether dU is
"""
_PRODUCTS = """
T           int    steps
B           int    batch
D           int    inputs
H           int    hidden units
columns     int    G
ldg         int    L
which       int    a bit each: W x; U h'; its transpose; gradients of the weights; gradient of x
prev        index  as a loop's
x           real   [T·B, D]
PW          packed W's panels
PU          packed U's
QW          packed W's, transposed
QU          packed U's, transposed
G           real   [T·B, L]
out         real   [T·B, H]
h0          real   [B, H]
dh          real   [B, H]
dx          real   [T·B, D]
dW          real   [G, D]
dU          real   [G, H]
db          real   [G]
shared      packed room for a block of tokens' panels
"""
_LINEAR = """
N           int    rows
K           int    inner
columns     int    V
ldg         int    between rows of `out`
x           real   [N, K]
pieces      packed the table of the weight's
bias        real   [V]
out         real   [N, V]
"""
_ENTROPY = """
N           int    tokens
V           int    vocabulary
differentiate int  whether gradients are wanted
logits      real   [N, V]
bias        real   [V]
targets     index  [N]
weights     real   [N]
losses      real   [N]
sums        real   a row of V for each thread
"""
_NOISE = """
N           int    rows
R           int    columns
blocks      int    of noise
seed        int    of it
starts      index  first and last + 1 column of each block
chance      real   p, 1 / p, scale
out         real   [N, R]
"""
_SHARED = Record.of("Sizes", _SIZES), Record.of("Tokens", _TOKENS), Record.of("Scratch", _SCRATCH)
LOOPS: dict[str, tuple[Record, ...]] = {
    "forward": (*_SHARED, Record.of("Weights", _WEIGHTS), Record.of("Given", _GIVEN), Record.of("Made", _MADE)),
    "backward": (*_SHARED, Record.of("Kept", _KEPT), Record.of("Gradient", _GIVEN_BACK), Record.of("Made", _MADE_BACK)),
    "products": (Record.of("Products", _PRODUCTS), _SHARED[2]),
    "linear": (Record.of("Linear", _LINEAR), _SHARED[2]),
    "cross_entropy": (Record.of("Entropy", _ENTROPY),),
    "draw": (Record.of("Noise", _NOISE),),
}
"""The records that each loop takes, in order."""


def names(loop: str) -> tuple[str, ...]:
    """All that a loop is called with, in order; no two of its records have a field of one name."""
    return tuple(name for record in LOOPS[loop] for name in record.made._fields)


def kinds(loop: str) -> list[str]:
    """The kinds of these."""
    return [kind for record in LOOPS[loop] for kind in record.kinds]
