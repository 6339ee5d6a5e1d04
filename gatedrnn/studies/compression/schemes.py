"""What is done to which rows of which weights.

Equations: Li et al. 2018, sec. 4.3: round, w → r·round(w / r); round & clip, w clipped to [−c, c] first; SVD, each gate's weight
at a low rank; SVD+ at half that rank. Departs: the small form is what is stored, not a dense matrix with small content.
"""

import re
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from gatedrnn.cells import Spec
from gatedrnn.core.checks import one_of, positive_int, positive_number
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import RecurrentBase
from gatedrnn.models.saving import PretrainedModel
from gatedrnn.weights.compressed import CompressedWeight, as_dense, blocks_of
from gatedrnn.weights.forms import SMALL, Block, grid, low_rank, part_of

METHODS = ("round", "clip", "svd", "int8", "int4", "bf16", "binary")
WEIGHTS = ("recurrent", "all")
_MATRIX = re.compile(r"weight_(ih|hh)_l\d+(_reverse)?")
_PUBLISHED_GATES = ("input", "forget")
_PUBLISHED_RANK = 128 / 1150  # of the hidden size
_PUBLISHED = {"language_modelling": (0.2, 0.4, _PUBLISHED_RANK), "translation": (0.5, 1.0, 32 / 256)}
"""Step, clip, and rank as a share of the hidden size, by task."""


@dataclass(frozen=True)
class Scheme:
    """One compression.

    Args:
        method: how weights are compressed: round (to multiples of `step`), clip (to [−`clip`, `clip`], then round), svd (two
            factors of `rank`), int8 or int4 (one scale per row), bf16, or binary (signs and one scale per row).
        gates: gates whose rows are compressed: names as `input` or `input_gate`, or `input=64` for a rank or step of its own;
            none for input and forget, as published, and for every row with int8, int4 and bf16.
        weights: recurrent (W and U of every layer) or all (also embeddings, linear maps); none for all with int8, int4 and bf16.
        step: r, the distance of neighbouring values, for round and clip.
        clip: c, the largest absolute value, for clip.
        rank: rank of the factors, for svd; default: 128 for 1,150 units, in proportion (for embeddings and linear maps to their
            columns), and below the sides.
        capped: whether a weight with too small a side for `rank` has the highest rank below that side; else it is refused.

    Raises: ArgumentError: an unknown method, or a value out of range.
    """

    method: str
    gates: tuple[str, ...] | None = None
    weights: str | None = None
    step: float = 0.2
    clip: float = 0.4
    rank: int | None = None
    capped: bool = field(default=False, repr=False)  # checkpoints name a scheme by its repr

    def __post_init__(self) -> None:
        one_of("compress.method", self.method, METHODS)
        positive_number("compress.step", self.step)
        positive_number("compress.clip", self.clip)
        if self.rank is not None:
            positive_int("compress.rank", self.rank)
        if self.weights is not None:
            one_of("compress.weights", self.weights, WEIGHTS)

    @property
    def whole(self) -> bool:
        """Whether every row is concerned."""
        return self.gates is None and self.method in ("int8", "int4", "bf16")


def published(hidden_size: int, task: str = "language_modelling") -> dict[str, Scheme]:
    """The four columns of the published table, that of translation or of language models, with ranks as shares of H, capped."""
    step, clip, share = _PUBLISHED.get(task, _PUBLISHED["language_modelling"])
    svd = Scheme("svd", rank=max(2, round(share * hidden_size)), capped=True)
    return {
        "round": Scheme("round", step=step),
        "round & clip": Scheme("clip", step=step, clip=clip),
        "SVD": svd,
        "SVD+": replace(svd, rank=max(1, (svd.rank or 0) // 2)),
    }


def compressed(model: PretrainedModel, scheme: Scheme) -> dict[str, Tensor]:
    """The model's state dict with the weights concerned in small forms, a tied decoder left out; other rows stay as they are.

    Raises: ArgumentError: a gate that the cell lacks (names those it has), or a rank as high as a weight's.
    """
    saved, concerned = model.own_state_dict(), places_by_weight(model, scheme)
    for name, places in concerned.items():
        value = saved[name]
        matrix, blocks = as_dense(value).float(), []
        for first, last, setting in places:
            if setting is None:
                kept = part_of(blocks_of(value), first, last)
                blocks += [Block(first + b.first, first + b.last, b.form, b.parts) for b in kept]
            else:
                blocks.append(Block(first, last, *small_form(matrix[first:last], name, setting)))
        saved[name] = CompressedWeight(blocks, value.shape[1])
    return saved


Places = list[tuple[int, int, Scheme | None]]
"""First row, last + 1, and what is done to these rows."""


def places_by_weight(model: PretrainedModel, scheme: Scheme) -> dict[str, Places]:
    """What is done to which rows of the weights concerned, by name."""
    found: dict[str, Places] = {}
    for owner, module in model.named_modules():
        if isinstance(module, RecurrentBase):
            places = _places(module.spec, scheme)
            found |= {f"{owner}.{name}": places for name, _ in module.named_parameters() if _MATRIX.fullmatch(name)}
    if (scheme.weights or ("all" if scheme.whole else "recurrent")) == "all":
        own = model.own_state_dict()  # without what is shared with another
        kinds = (nn.Embedding, nn.Linear)
        names = [f"{owner}.weight" for owner, each in model.named_modules() if isinstance(each, kinds)]
        found |= {name: [(0, len(own[name]), _ranked(scheme, own[name].shape[1]))] for name in names if name in own}
    return found


def _ranked(scheme: Scheme, width: int) -> Scheme:
    """The scheme with the rank that svd has by default for an embedding or a linear map: not that of so many words."""
    if scheme.method != "svd" or scheme.rank is not None:
        return scheme
    return replace(scheme, rank=max(2, round(_PUBLISHED_RANK * width)), capped=True)


def _places(spec: Spec, scheme: Scheme) -> Places:
    names = [gate.name for gate in spec.gates]
    wanted: dict[str, Scheme] = dict.fromkeys(names, scheme) if scheme.whole else {}
    for name in () if scheme.whole else scheme.gates or _PUBLISHED_GATES:
        gate, equals, setting = name.partition("=")
        found = _gate(gate.strip(), names)
        if found in wanted:
            raise ArgumentError("compress.gates", "must name each gate once", repr(name), f"Leave one {found} out")
        wanted[found] = _with(scheme, name, setting) if equals else scheme
    places, start = [], 0
    for gate in spec.gates:
        places.append((start, start + gate.rows, wanted.get(gate.name)))
        start += gate.rows
    return places


def _gate(name: str, names: list[str]) -> str:
    found = [full for full in names if full in (name, f"{name}_gate")]
    if not found:
        raise ArgumentError(
            "compress.gates", f"must name gates of the cell: {', '.join(names)}", repr(name), "Choose some of them"
        )
    return found[0]


_SETTINGS = {"round": "step", "clip": "step", "svd": "rank"}


def _with(scheme: Scheme, given: str, setting: str) -> Scheme:
    """The scheme with a gate's own setting."""
    if scheme.method not in _SETTINGS:
        raise ArgumentError(
            "compress.gates",
            f"{scheme.method} has no setting for a gate",
            repr(given),
            "Give the name of the gate only",
        )
    field = _SETTINGS[scheme.method]
    try:
        value = int(setting) if field == "rank" else float(setting)
    except ValueError as error:
        raise ArgumentError(
            "compress.gates", f"must give a gate its {field} as a number", repr(given), "Write, for example, input=64"
        ) from error
    return replace(scheme, **{field: value})  # type: ignore[arg-type]


def small_form(matrix: Tensor, name: str, scheme: Scheme) -> tuple[str, dict[str, Tensor]]:
    """Form and parts of a matrix, rows of the weight `name`. Raises: ArgumentError: a rank that is no lower than the matrix's."""
    if scheme.method == "round":
        return grid(matrix, scheme.step)
    if scheme.method == "clip":
        return grid(matrix.clamp(-scheme.clip, scheme.clip), scheme.step)
    if scheme.method != "svd":
        return scheme.method, SMALL[scheme.method](matrix)
    most = min(matrix.shape)
    rank = max(2, round(_PUBLISHED_RANK * len(matrix))) if scheme.rank is None else scheme.rank
    if scheme.capped or scheme.rank is None:
        rank = max(1, min(rank, most - 1))
    elif rank >= most:
        got = f"rank={rank} for {name}, {matrix.shape[0]} rows of {matrix.shape[1]}"
        raise ArgumentError("compress.rank", f"must be below {most}", got, f"Try {max(1, most // 8)}")
    return low_rank(matrix, rank)
