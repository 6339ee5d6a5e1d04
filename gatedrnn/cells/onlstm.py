"""ON-LSTM: an LSTM whose cell state is ordered by two master gates, cumax over K chunks of C units."""

import torch
from torch import Tensor

from gatedrnn.cells import lstm
from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace
from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError

SPLIT_POINTS = ("paper", "free")


def make_spec(hidden_size: int, *, chunk_size: int = 1, split_points: str = "paper") -> Spec:
    """Rows i f g o (H each), then master_input, master_forget (D_m = H / chunk_size each; one more if free).

    With `split_points="paper"` cumax ends at exactly 1, so the last chunk never leaves its initial state. "free" adds a
    split point beyond the last unit, so that the last chunk can change.
    Raises: ArgumentError: chunk_size does not divide hidden_size, or split_points is unknown.
    """
    positive_int("ONLSTM.chunk_size", chunk_size)
    one_of("ONLSTM.split_points", split_points, SPLIT_POINTS)
    if hidden_size % chunk_size:
        divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - chunk_size))[:2])
        raise ArgumentError(
            "ONLSTM.chunk_size",
            "must divide hidden_size",
            f"hidden_size={hidden_size}, chunk_size={chunk_size}",
            f"Try {' or '.join(map(str, near))}",
        )
    chunks = hidden_size // chunk_size
    rows = chunks + (split_points == "free")
    masters = (Gate("master_input", rows, "tail_cumax", chunks), Gate("master_forget", rows, "cumax", chunks))
    return Spec(hidden_size, lstm.make_spec(hidden_size).gates + masters, ("h", "c"))


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """f̃ = cumax(·); ĩ = 1 − cumax(·); ω = f̃∘ĩ; f̂ = f∘ω + (f̃ − ω); î = i∘ω + (ĩ − ω); c = f̂∘c' + î∘g; h = o∘tanh(c).

    Equations: Shen et al. 2019, eq. 9–14. Departs: none (1 − cumax is summed from the end, which does not cancel).
    Args:    x_gates, h_gates: [B, 4H + 2 D_m], rows i f g o ĩ f̃; state: (h', c') of [B, H].
    Returns: (h, c), gates of [B, H], master gates of [B, D_m].
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    H = spec.hidden_size
    a_i, a_f, a_g, a_o, a_im, a_fm = spec.split(x_gates + h_gates)
    i = spec.squash("input_gate", a_i)
    f = spec.squash("forget_gate", a_f)
    g = spec.squash("cell_candidate", a_g)
    o = spec.squash("output_gate", a_o)
    i_master = spec.squash("master_input", a_im)
    f_master = spec.squash("master_forget", a_fm)
    overlap = f_master * i_master
    w = repeat_chunks(overlap, H)
    f_hat = f * w + repeat_chunks(f_master - overlap, H)
    i_hat = i * w + repeat_chunks(i_master - overlap, H)
    c = f_hat * c + i_hat * g
    h = o * torch.tanh(c)
    gates = {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}
    return (h, c), gates | {"master_input": i_master, "master_forget": f_master}


def repeat_chunks(values_BK: Tensor, hidden_size: int) -> Tensor:
    """Each of K values repeated for the hidden_size / K consecutive units of its chunk: [B, K] → [B, H]."""
    chunks = values_BK.shape[-1]
    if chunks == hidden_size:
        return values_BK
    return torch.repeat_interleave(values_BK, hidden_size // chunks, -1, output_size=hidden_size)


CELL = Cell(
    "onlstm", "ON-LSTM", make_spec, step, {"chunk_size": 1, "split_points": "paper"}, advised={"chunk_size": 10}
)
