"""What the fuzzer of calls runs, as data: a layer or a language model, then a program of calls and changes between them.

A case prints as the Python that makes it, defaults left out, so `--replay` takes what a finding shows. One generator serves a
seeded `random.Random` and hypothesis: it only ever picks one of several values, the plainest first.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

Pick = Callable[[Sequence[Any]], Any]


class _Printed:
    """Prints only what differs from the defaults."""

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Call(_Printed):
    """One forward of a layer, and its backward where the mode is "grad".

    Args:
        mode: "no_grad", "inference" or "grad".
        wrap: around the call: compile, vmap, checkpoint, fork, threads, …
        strides, state_strides: how the input and the states lie in memory.
        values: of the input: normal, or with NaN or infinities.
        loss: "probe" (random weights), "sum" (expanded gradients), "strided"; of all results, or of one ("output", "final").
        frozen: what needs no gradient: "", "x", "states", "weights", "some".
        wrong: what is wrong with the call, "" for nothing.
        keep: "" holds what was given out and reads it again at the end; "share", "queue": as another process does; "drop": not.
        other: the call is of the second layer.
    """

    mode: str = "no_grad"
    wrap: str = ""
    autocast: str = ""
    layout: str = "padded"
    steps: int = 3
    batch: int = 2
    strides: str = "plain"
    states: bool = False
    state_strides: str = "plain"
    lengths: str = ""
    gates: str = ""
    noise: str = ""
    values: str = "normal"
    loss: str = "probe"
    frozen: str = ""
    training: bool = False
    wrong: str = ""
    keep: str = ""
    other: bool = False


@dataclass(frozen=True, repr=False)
class Change(_Printed):
    """Something that happens to the layer between two calls; `where` chooses among its parameters and their elements."""

    what: str
    where: int = 0


@dataclass(frozen=True, repr=False)
class Case(_Printed):
    """A layer and its program. `options`, `gates`: pairs of name and value; `by_class`: made by its own class."""

    seed: int
    program: tuple[Call | Change, ...]
    cell: str = "lstm"
    options: tuple[tuple[str, Any], ...] = ()
    width: int = 3
    hidden: int = 4
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    batch_first: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    backend: str = "auto"
    gates: tuple[tuple[str, Any], ...] | None = None
    by_class: bool = False
    threads: int = 1
    gain: float = 1.0


@dataclass(frozen=True, repr=False)
class Score(_Printed):
    """One forward of a language model. `tokens`, `targets`: types; `ids`: what is unusual about the targets."""

    mode: str = "no_grad"
    wrap: str = ""
    autocast: str = ""
    steps: int = 3
    batch: int = 2
    tokens: str = "int64"
    targets: str = "int64"
    ids: str = "normal"
    strides: str = "plain"
    lengths: str = ""
    values: str = "normal"
    divisor: float | None = None
    carried: bool = False


@dataclass(frozen=True, repr=False)
class ModelCase(_Printed):
    """A language model and the calls of it."""

    seed: int
    program: tuple[Score | Change, ...]
    cell: str = "lstm"
    vocabulary: int = 11
    sizes: tuple[int, ...] = (4,)
    tied: bool = False
    dtype: str = "float32"
    threads: int = 1


CELLS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("lstm", ()),
    ("gru", ()),
    ("gru", (("reset_after", False),)),
    ("rnn", ()),
    ("rnn", (("nonlinearity", "relu"),)),
    ("rnn", (("nonlinearity", "sigmoid"),)),
    ("coupled", ()),
    ("peephole", ()),
    ("peephole", (("peephole", "full"),)),
    ("onlstm", ()),
    ("onlstm", (("chunk_size", -1),)),
    ("onlstm", (("split_points", "free"),)),
    ("onlstm", (("chunk_size", -1), ("split_points", "free"))),
    ("g2lstm", ()),
    ("mgu", ()),
    ("layernorm", ()),
    ("slstm", ()),
)
"""Every cell with its options; a chunk size of −1 is a divisor of H above 1."""

CHANGES = (
    "data", "data_element", "data_column", "copy", "copy_all", "sgd", "adam", "adam_foreach", "adam_fused", "sgd_fused",
    "adam_fused_column", "adagrad_fused", "load_state_dict", "new_parameter", "new_shared_storage", "double_and_back",
    "vector_to_parameters", "swap_other", "swap_same", "tie_other", "tie_layers", "view", "offset", "transposed",
    "strided_parameter", "expanded", "neg", "prune", "prune_all", "prune_remove", "weight_norm", "spectral_norm", "orthogonal",
    "old_weight_norm", "old_spectral_norm", "deepcopy", "pickle", "save_load", "save_whole", "weights_only", "flatten",
    "double", "float", "half", "share_memory", "set_data", "numpy_edit", "requires_grad_off", "requires_grad_on", "nan_weight",
    "inf_weight", "subclass", "plain_subclass", "parameter_subclass", "resize_wrong", "wrong_dtype_one",
    "meta_one", "functional_edit", "delete_bias", "backend_cpu", "backend_torch", "backend_auto", "swap_tensors",
)  # fmt: skip
"""Everything that a user may do to a layer between calls."""

STRIDES = ("plain", "transposed", "strided", "offset", "expanded", "neg", "imag", "narrow", "subclass", "two_tensor")
WRAPS = (
    "functional", "func_grad", "vmap", "vmap_in", "checkpoint", "reentrant", "double_backward", "jvp", "threads",
    "threads_change", "fork", "fork_busy", "jacrev", "trace", "anomaly", "dispatch_mode", "function_mode", "default_dtype",
    "hooks", "saved_hooks", "twice_backward", "deterministic", "data_parallel_threads",
)  # fmt: skip
SLOW_WRAPS = ("compile", "compile_full", "compile_dynamic", "export", "compile_inductor")
WRONG = (
    "ndim1", "ndim4", "width", "dtype", "int", "complex", "no_steps", "hx_shape", "hx_count", "hx_dtype", "hx_type", "hx_meta",
    "lengths_zero", "lengths_long", "lengths_negative", "lengths_count", "lengths_float", "lengths_bool", "lengths_huge",
    "lengths_single", "lengths_packed", "noise_count", "noise_shape", "noise_meta", "noise_dtype", "noise_type", "gate_name",
    "x_meta", "x_sparse", "x_mkldnn", "x_nested", "x_list", "x_none", "x_numpy", "hx_sparse", "x_quantised",
)  # fmt: skip


def draw(pick: Pick, seed: int, slow: int = 60) -> Case | ModelCase:
    """A case; one in `slow` goes through a compiler (0: none does)."""
    if pick((0, 0, 0, 0, 0, 1)):
        return _model(pick, seed, slow)
    cell, options = pick(CELLS)
    large = pick((0,) * 9 + (1,))
    hidden = pick((4, 1, 2, 3, 5, 6, 7, 8, 15, 16, 17, 32, 33, 35, 64))
    width = pick((3, 1, 2, 4, 7, 16, 33, 40, 300, hidden))
    if large:
        hidden, width = pick((128, 70, 257, 96)), pick((3, 64, 600, hidden))
    if dict(options).get("chunk_size") == -1:
        divisors = [n for n in range(2, hidden + 1) if hidden % n == 0] or [1]
        options = tuple((k, pick(divisors) if k == "chunk_size" else v) for k, v in options)
    case = Case(
        seed=seed,
        program=(),
        cell=cell,
        options=options,
        width=width,
        hidden=hidden,
        layers=pick((1, 1, 2, 3)),
        bidirectional=pick((False, False, True)),
        bias=pick((True, True, True, False)),
        batch_first=pick((False, True)),
        dtype=pick(("float32",) * 12 + ("float64",) * 3 + ("bfloat16", "float16")),
        device=pick(("cpu",) * 40 + ("meta",)),
        backend=pick(("auto",) * 8 + ("cpu", "cpu", "torch", "reference")),
        gates=_gates(pick, cell, options) if pick((0, 0, 0, 1)) else None,
        by_class=pick((False, True)),
        threads=pick((1, 1, 2)),
        gain=pick((1.0, 1.0, 3.0, 0.1)),
    )
    compiled = bool(slow) and pick(tuple(range(slow))) == slow - 1
    first = replace(_call(pick, case, large), wrap=pick(SLOW_WRAPS) if compiled else pick(("",) * 3 + WRAPS[:1]))
    if compiled:
        first = replace(first, keep="", strides=pick(("plain", "plain", "transposed", "strided")))
    program: list[Call | Change] = [first]
    for _ in range(pick((3, 1, 2, 4, 6))):
        kind = pick(("change", "again", "call", "again"))
        if kind == "change":
            program.append(Change(pick(CHANGES), pick(range(12))))
        elif kind == "again":  # the shape of an earlier call, plainly: what is remembered is used
            calls = [entry for entry in program if isinstance(entry, Call)]
            changed = {"wrong": "", "values": "normal", "keep": pick(("", "drop")), "other": pick((False, False, True))}
            program.append(replace(pick(calls), **changed))
        else:
            program.append(_call(pick, case, large, compiled))
    if isinstance(program[-1], Change):
        program.append(replace(first, wrong="", values="normal", keep=""))
    return replace(case, program=tuple(_short(case, entry) for entry in program))


def _short(case: Case, entry: Call | Change) -> Call | Change:
    """A call of few steps where a compiler would unroll many, for minutes: where no kernel of ours runs."""
    if not isinstance(entry, Call) or entry.wrap not in SLOW_WRAPS:
        return entry
    kernel = case.backend != "reference" and entry.autocast != "float16"
    kernel &= case.dtype == "float32" or (case.dtype == "float64" and not entry.autocast)
    return entry if kernel else replace(entry, steps=min(entry.steps, 3))


def _gates(pick: Pick, cell: str, options: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value)
        for name, value in (
            ("temperature", pick((1.0, 0.5, 2.0))),
            ("evaluation_temperature", pick((1.0, 0.5, 2.0))),
            ("noise_probability", pick((0.0, 1.0))),
            ("straight_through", pick((False, False, False, True))),
        )
        if value not in (1.0, 0.0, False) or name == "temperature"
    )


def _call(pick: Pick, case: Case, large: bool, compiled: bool = False) -> Call:
    """One call, mostly plain: each unusual thing has its own small chance."""

    def rarely(values: Sequence[Any], one_in: int, usual: Any) -> Any:
        return pick(values) if pick(tuple(range(one_in))) == one_in - 1 else usual

    mode = pick(("no_grad", "grad", "no_grad", "inference", "grad"))
    wrong = rarely(WRONG, 12, "")
    call = Call(
        mode=mode,
        wrap=rarely(WRAPS, 4, ""),
        autocast=rarely(("bfloat16", "float16"), 8, ""),
        layout=pick(("padded", "padded", "padded", "single", "packed", "packed_sorted")),
        steps=pick((3, 1, 2, 5, 17)) if not large else pick((3, 1, 64, 70)),
        batch=pick((2, 1, 3, 5, 9, 33, 1, 0)) if not large else pick((2, 1, 33, 40)),
        strides=rarely(STRIDES, 4, "plain"),
        states=pick((False, True)),
        state_strides=rarely(STRIDES[:8], 4, "plain"),
        lengths=rarely(("list", "int64", "int32", "strided", "full", "int16", "uint8", "tuple"), 4, ""),
        gates=rarely(("all", "some"), 5, ""),
        noise=rarely(("drawn", "drawn64", "drawn_strided", "none"), 8, ""),
        values=rarely(("nan", "inf", "-inf", "zero", "large", "tiny"), 8, "normal"),
        loss=rarely(("sum", "strided", "output", "final", "gate", "expanded"), 3, "probe"),
        frozen=rarely(("x", "states", "weights", "some", "all"), 4, ""),
        training=pick((False, False, True)),
        wrong=wrong,
        keep=rarely(("share", "queue", "drop"), 2 if large else 8, ""),
        other=rarely((True,), 8, False),
    )
    if wrong.startswith("lengths"):
        call = replace(call, layout="packed" if wrong == "lengths_packed" else "padded", lengths="list")
    if wrong.startswith("hx"):
        call = replace(call, states=True)
    if wrong.startswith("noise"):
        call = replace(call, noise="drawn")
    if call.wrap in ("fork", "fork_busy", "threads", "threads_change", "data_parallel_threads", "trace"):
        call = replace(call, mode="no_grad")
    if call.wrap in ("double_backward", "checkpoint", "reentrant", "hooks", "saved_hooks", "twice_backward", "anomaly"):
        call = replace(call, mode="grad")
    if call.wrap == "reentrant" and call.layout != "padded":  # it sees tensors only
        call = replace(call, wrap="checkpoint")
    if compiled and pick((0, 1)):
        call = replace(call, wrap=pick(SLOW_WRAPS))
    if call.wrap == "compile_inductor" and "neg" in (call.strides, call.state_strides):
        call = replace(call, wrap="compile")  # PyTorch's Inductor drops the sign, of t + 1 too
    return call


def _model(pick: Pick, seed: int, slow: int) -> ModelCase:
    size = pick((4, 1, 5, 16, 33))
    sizes = pick(((size,), (7, size), (size, size)))
    program: list[Score | Change] = []
    for _ in range(pick((2, 1, 3))):
        program.append(
            Score(
                mode=pick(("no_grad", "grad", "grad", "inference")),
                wrap=pick(("",) * 8 + ("func_grad", "checkpoint", "functional", "vmap", "threads", "fork")),
                autocast=pick(("",) * 7 + ("bfloat16",)),
                steps=pick((3, 1, 7, 40)),
                batch=pick((2, 1, 5, 0)),
                tokens=pick(("int64", "int64", "int32", "int16", "uint8")),
                targets=pick(("int64", "int64", "int64", "int32", "int16", "uint8", "float32", "", "bool")),
                ids=pick(("normal", "normal", "ignored", "all_ignored", "high", "low", "far", "tokens_high", "shape")),
                strides=pick(("plain", "plain", "transposed", "strided", "expanded")),
                lengths=pick(("", "", "", "list")),
                values=pick(("normal",) * 6 + ("nan_decoder", "nan_bias", "inf_bias", "nan_embedding", "-inf_bias")),
                divisor=pick((None, None, None, 7.0)),
                carried=pick((False, True)),
            )
        )
        if pick((0, 0, 1)):
            program.append(Change(pick(("data", "adam_fused", "copy", "double", "load_state_dict")), pick(range(12))))
    if slow and pick(tuple(range(slow // 4 or 1))) == slow // 4 - 1:
        call = next(entry for entry in program if isinstance(entry, Score))
        program[0] = replace(call, wrap=pick(("compile", "compile_inductor", "export")), values="normal")
    return ModelCase(
        seed=seed,
        program=tuple(program),
        cell=pick(("lstm", "onlstm", "gru", "rnn", "coupled", "peephole", "g2lstm")),
        vocabulary=pick((11, 1, 2, 8, 100, 1001)),
        sizes=sizes,
        tied=pick((False, True)),
        dtype=pick(("float32",) * 4 + ("float64", "bfloat16")),
        threads=pick((1, 2)),
    )


def numbered(seed: int, slow: int = 60) -> Case | ModelCase:
    """The case of that number."""
    return draw(random.Random(seed).choice, seed, slow)


def read(text: str) -> Case | ModelCase:
    """The case that was printed so."""
    known = {kind.__name__: kind for kind in (Case, ModelCase, Call, Score, Change)}
    return eval(text, {"__builtins__": {}, "inf": float("inf")}, known)


def simpler(case: Case | ModelCase) -> list[Case | ModelCase]:
    """Cases that are a little plainer: an entry fewer, or one field at its default."""
    found: list[Any] = []
    program = case.program
    if len(program) > 1:
        found += [replace(case, program=program[:k] + program[k + 1 :]) for k in range(len(program))]
    for owner, put in [(case, lambda new: new)] + [
        (entry, lambda new, k=k: replace(case, program=(*program[:k], new, *program[k + 1 :])))  # type: ignore[misc]
        for k, entry in enumerate(program)
    ]:
        for field in fields(owner):
            if field.default is not MISSING and getattr(owner, field.name) != field.default:
                found.append(put(replace(owner, **{field.name: field.default})))  # type: ignore[arg-type]
    return found
