"""Cells made up from the compiler's vocabulary: `python -m tests.property.made_up --cells 200 --seed 1`.

Also `--backend triton`, and `--matrices` for products inside the step with matrices of the cell's own. A seed makes the source of
a cell (the compiler reads code), sizes and a call; kernels must equal the reference, gradients too.
"""

import argparse
import copy
import importlib.util
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from gatedrnn import Gates, Recurrent
from gatedrnn.core.errors import BackendError

HEAD = '''"""A cell that was made up."""
import torch
from torch.nn import functional as F
from gatedrnn.cells import Cell, Extra, Gate, Spec, repeat_chunks

'''


@dataclass
class Made:
    """A cell's source, its sizes, and what it is called with."""

    seed: int
    source: str
    hidden: int
    options: dict
    gates: Gates
    lengths: list[int]
    dtype: torch.dtype


class Maker:
    """Writes one step: values of H units, of chunks, and numbers of a row, each line from earlier ones."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        self.lines: list[str] = []
        self.units: list[str] = []
        self.chunks: list[str] = []
        self.rows: list[str] = []
        self.of_chunks = ""
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def say(self, expression: str, kind: list[str]) -> str:
        name = self.name()
        self.lines.append(f"    {name} = {expression}")
        kind.append(name)
        return name

    def unit(self) -> str:
        """A bounded value of every unit."""
        return self.draw.choice(self.units)

    def grow(self) -> None:
        """One more line."""
        pick, a, b = self.draw.random(), self.unit(), self.unit()
        pointwise = [
            f"{a} * {b}", f"0.5 * ({a} + {b})", f"0.5 * {a} - 0.3 * {b}", f"1 - {a}", f"-{a}", f"{a} / (1 + {b} * {b})",
            f"torch.sigmoid({a} + {b})", f"torch.tanh({a} - 2 * {b})", f"torch.relu({a})", f"torch.exp(-{a} * {a})",
            f"torch.log(1.5 + {a} * {a})", f"torch.sqrt(0.1 + {a} * {a})", f"{a}.abs()", f"torch.maximum({a}, {b})",
            f"torch.minimum({a}, 0.5 * {b})", f"{a}.clamp(-0.4, 0.7)", f"torch.where({a} > {b}, {a}, 0.5 * {b})",
            f"torch.where({a} >= 0.1, {b}, {a} * {b})", f"F.softplus({a})", f"F.logsigmoid({a})", f"{a}.pow(2)", f"F.silu({a})",
            f"{a}.detach() * {b}", f"torch.where({a} <= 0, {a}, 0.2)", f"torch.rsqrt(1 + {a} * {a})", f"torch.square({a})",
            f"torch.clamp({a}, -0.3 * {b}.abs(), {b}.abs())", f"{a}.clamp(min=0.5 * {b})", f"{a}.clamp(max={b})",
            f"spec.constant('beta') * {a}", f"torch.where({a} > spec.constant('gamma'), {a}, {b})",
            f"torch.ones_like({a}) - torch.full_like({a}, 0.7) * {b}", f"{a} * torch.tanh(torch.ones_like({b}))",
        ]  # fmt: skip
        if pick < 0.72 and not (self.of_chunks and pick < 0.3):
            self.say(self.draw.choice(pointwise), self.units)
        elif pick < 0.72:
            self.grow_chunks(a, b)
        elif pick < 0.84:
            self.grow_numbers(a, f"({a} * {b})", b)
        elif pick < 0.94:
            whole = [
                f"torch.softmax({a}, -1)",
                f"torch.cumsum(torch.softmax({a}, -1), -1)",
                f"torch.softmax({a}, -1).flip(-1).cumsum(-1).flip(-1)",
                f"{a}.cumsum(-1) / H_",
                f"F.layer_norm({a}, {a}.shape[-1:])",
            ]
            self.say(self.draw.choice(whole), self.units)
        else:
            self.say(
                f"({a} - {a}.mean(-1, keepdim=True)) * torch.rsqrt({a}.var(-1, keepdim=True, correction=0) + 0.1)",
                self.units,
            )

    def grow_numbers(self, a: str, product: str, b: str) -> None:
        """A number of the row of one or two values, and a value of every unit that follows from it."""
        reduced = [f"{a}.mean(-1, keepdim=True)", f"{a}.amax(-1, keepdim=True)", f"torch.tanh({a}.sum(-1, keepdim=True))",
                   f"{a}.amin(-1, keepdim=True)", f"{product}.mean(-1, keepdim=True)",
                   f"torch.ones_like({a}).mean(-1, keepdim=True)", f"torch.tanh({product}.amin(-1, keepdim=True))"]  # fmt: skip
        number = self.say(self.draw.choice(reduced), self.rows)
        self.say(f"{a} - {number}" if self.draw.random() < 0.5 else f"torch.sigmoid({number}) * {b}", self.units)

    def grow_chunks(self, a: str, b: str) -> None:
        """A value of every chunk, and a value of every unit that follows from it."""
        known = self.draw.choice(self.chunks or ["1.0"])
        made = [f"torch.tanh({a}.{self.of_chunks}.sum(-1))", f"{a}.{self.of_chunks}.mean(-1)",
                f"{known} * ({a} * {b}).{self.of_chunks}.mean(-1)"]  # fmt: skip
        chunk = self.say(self.draw.choice(made), self.chunks)
        if self.draw.random() < 0.3:
            chunk = self.say(f"torch.softmax({chunk}, -1)", self.chunks)
        ends = ["mean", "amax", "amin"]
        number = f"torch.sigmoid({chunk}.{self.draw.choice(ends)}(-1, keepdim=True))"
        of_units = [f"repeat_chunks({chunk}, H_)", f"repeat_chunks(1 - {chunk}, H_) * {b}", f"{a} * {number}"]
        self.say(self.draw.choice(of_units), self.units)


class Matrices:
    """Products inside the step with matrices of the cell's own; each of their parts, a gate's rows, is in one of them."""

    def __init__(self, maker: Maker, states: int, names: list[str]) -> None:
        self.maker, self.draw, self.states = maker, random.Random(maker.seed), states
        self.signs = random.Random(f"signs {maker.seed}")
        self.gates = [self.draw.sample(names, self.draw.randint(1, len(names))) for _ in range(self.draw.randint(1, 2))]
        self.early: list[str] = []
        self.late: list[str] = []
        self.of_gate: dict[str, str] = {}
        self.results: list[str] = []
        for k, gates in enumerate(self.gates):
            matrix = f"params.extras['weight_m{k}']"
            if self.draw.random() < 0.3:  # one product with all
                self.draw.choice([self.early, self.late]).append(f"{matrix}|{len(gates)}")
                continue
            for part, gate in enumerate(gates):
                rows = (
                    f"{matrix}.chunk({len(gates)})[{part}]"
                    if self.draw.random() < 0.5
                    else f"{matrix}[{part} * H_ : {part + 1} * H_]"
                )
                if gate not in self.of_gate and self.draw.random() < 0.6:
                    self.of_gate[gate] = rows
                else:
                    self.draw.choice([self.early, self.late]).append(f"{rows}|1")

    def extras(self) -> str:
        return ", ".join(f"Extra('weight_m{k}', {tuple(gates)}, full=True)" for k, gates in enumerate(self.gates))

    def product(self, rows: str) -> str:
        left = (
            f"s{self.draw.randrange(self.states)}" if self.draw.random() < 0.4 else self.draw.choice(self.maker.units)
        )
        return f"F.linear({left}, {rows})" if self.draw.random() < 0.5 else f"({left} @ {rows}.t())"

    def write(self, products: list[str]) -> None:
        for each in products:
            rows, parts = each.split("|")
            found = self.maker.say(self.product(rows), [])
            times = " * a_g0" if self.signs.random() < 0.3 else ""  # so that its gradient reads a gate's sum
            self.results += [f"torch.tanh({found}.chunk({parts}, -1)[{part}]{times})" for part in range(int(parts))]
            self.maker.units += self.results[-int(parts) :]

    def logits(self, gate: str) -> str:
        """What is done to a gate's sum: a product is added to it, or it is multiplied by one."""
        sign = "*" if self.signs.random() < 0.3 else "+"
        return f" {sign} {self.product(self.of_gate[gate])}" if gate in self.of_gate else ""


def make(seed: int, with_matrices: bool = False) -> Made:
    """The cell of a seed; with matrices of its own, or without."""
    m = Maker(seed)
    draw = m.draw
    hidden = draw.choice([1, 2, 3, 6, 7, 8, 12, 16, 17, 33])
    names = [f"g{k}" for k in range(draw.randint(1, 4))]
    states = ["h", "c", "n", "q"][: draw.randint(1, 4)]
    squashes = [draw.choice(["sigmoid", "sigmoid", "tanh", "relu", "exp"]) for _ in names]
    bounded = {n: f"({n} / (1 + {n}))" if s == "exp" else n for n, s in zip(names, squashes, strict=True)}
    chunk = draw.choice([n for n in range(1, hidden + 1) if hidden % n == 0])
    masters = draw.random() < 0.4
    free = draw.random() < 0.4
    extras = draw.randint(0, 2)
    inside = len(names) > 1 and not masters and draw.random() < 0.3
    apart = not inside and draw.random() < 0.3
    spec = [f'Gate("{n}", H, "{s}")' for n, s in zip(names, squashes, strict=True)]
    if masters:
        rows = f"H // {chunk} + {int(free)}"
        spec += [f'Gate("m0", {rows}, "tail_cumax", H // {chunk})', f'Gate("m1", {rows}, "cumax", H // {chunk})']
        m.of_chunks = f"view(-1, H_ // {chunk}, {chunk})"
    every = [*names, *(["m0", "m1"] if masters else [])]
    own = f"[Extra('weight_e{{}}'.format(k), ('{names[0]}', '{names[-1]}')[: k + 1]) for k in range({extras})]"
    matrices = Matrices(m, len(states), names) if with_matrices else None
    own = f"[{matrices.extras()}, *{own}]" if matrices else own
    text = [HEAD, "def make_spec(H):"]
    text.append(f"    numbers = {(('beta', draw.choice([0.5, -1, 1.25])), ('gamma', draw.choice([0, 0.3])))}")
    text.append(
        f"    return Spec(H, ({', '.join(spec)},), {tuple(states)}, {len(names) - 1 if inside else None}, tuple({own}),"
        " constants=numbers)"
    )
    text += [
        "",
        "",
        "def step(spec, params, x_gates, h_gates, state):",
        f"    {', '.join(f's{k}' for k in range(len(states)))}, = state",
    ]
    body = m.lines
    m.units += [f"s{k}" for k in range(len(states))]
    if inside:
        body.append(f"    {', '.join(f'x_{n}' for n in every)}, = spec.split(x_gates)")
        body.append(f"    {', '.join(f'h_{n}' for n in every[:-1])}, = spec.split(h_gates)")
        body += [f"    a_{n} = x_{n} + h_{n}" for n in every[:-1]]
    elif apart:
        body.append(f"    {', '.join(f'x_{n}' for n in every)}, = spec.split(x_gates)")
        body.append(f"    {', '.join(f'h_{n}' for n in every)}, = spec.split(h_gates)")
        among = [every[-1]] if draw.random() < 0.5 else draw.sample(every, draw.randint(1, len(every)))
        body += [
            f"    a_{n} = x_{n} + {'torch.sigmoid(s0.mean(-1, keepdim=True)) * ' if n in among else ''}h_{n}"
            for n in every
        ]
    else:
        body.append(f"    {', '.join(f'a_{n}' for n in every)}, = spec.split(x_gates + h_gates)")
    for k in range(extras):
        for part, owner in enumerate((names[0], names[-1])[: k + 1]):
            m.units.append(
                f"torch.tanh(params.extras['weight_e{k}'].split([H_] * {k + 1})[{part}] * s{draw.randrange(len(states))})"
            )
            body.append("") if not owner else None
    body.insert(0, "    H_ = spec.hidden_size")
    for _ in range(draw.randint(0, 3)):
        m.grow()
    if matrices:
        matrices.write(matrices.early)
    reads_logits = draw.random() < 0.15
    for n in names[: len(names) - inside]:
        logits = f"a_{n}" + (matrices.logits(n) if matrices else "")
        if draw.random() < 0.3:
            logits += f" + 0.5 * {m.unit()}"
        body.append(f'    {n} = spec.squash("{n}", {logits})')
        m.units.append(bounded[n])
        if reads_logits:
            m.units.append(f"torch.tanh(a_{n})")
    if masters:
        for n in ("m0", "m1"):
            body.append(f'    {n} = spec.squash("{n}", a_{n})')
        overlap = draw.choice(["m0 * m1", "m0 - m0 * m1", "1 - m1"])
        body += [f"    w = {overlap}", "    u = repeat_chunks(w, H_)", "    r = repeat_chunks(m1, H_)"]
        m.units += ["u", "r"]
        m.chunks += ["m0", "w"]
    if inside:
        n = names[-1]
        of_own = matrices.logits(n) if matrices else ""
        sign = random.Random(f"sign {seed}").choice("++*")
        body += ["    first = spec.recurrent_rows", f"    left = {m.unit()} * {m.unit()}",
                 "    b_ = None if params.bias_hh is None else params.bias_hh[first:]",
                 f'    {n} = spec.squash("{n}", x_{n} {sign} F.linear(left, params.weight_hh[first:], b_){of_own})']  # fmt: skip
        m.units.append(bounded[n])
    if matrices:
        matrices.write(matrices.late)
    for _ in range(draw.randint(1, 7)):
        m.grow()
    new = [
        f"{draw.choice(['0.9 * ', ''])}torch.tanh({m.unit()} + {m.unit()} * s{k})" if draw.random() < 0.8 else m.unit()
        for k in range(len(states))
    ]
    for k, each in enumerate(matrices.results if matrices else []):  # no product is without use
        new[k % len(new)] += f" + 0.3 * {each}"
    body.append(f"    new = [{', '.join(new)}]")
    body.append(f"    return tuple(new), {{{', '.join(f'{n!r}: {n}' for n in every)}}}")
    text += [*body, "", "", 'CELL = Cell("made", "made up", make_spec, step)', ""]
    soft = [n for n, s in zip(names, squashes, strict=True) if s == "sigmoid"] + (["m0", "m1"] if masters else [])
    gates = Gates()
    if soft and draw.random() < 0.3:
        gates = Gates(
            temperature=0.8,
            evaluation_temperature=0.8,
            straight_through=draw.random() < 0.6,
            names=(draw.choice(soft),),
        )
    steps, batch = draw.choice([1, 3, 5]), draw.choice([1, 2, 4])
    lengths = [draw.randint(1, steps) for _ in range(batch)]
    lengths[0] = steps
    options = {"bidirectional": draw.random() < 0.3, "bias": draw.random() < 0.8, "num_layers": draw.choice([1, 1, 2])}
    dtype = torch.float32 if draw.random() < 0.25 else torch.float64
    return Made(seed, "\n".join(text), hidden, options, gates, lengths, dtype)


def load(made: Made, folder: Path):
    """The cell, imported from a file."""
    path = folder / f"made_{made.seed}.py"
    path.write_text(made.source, "utf-8")
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module.CELL


def results(layer, backend: str, x, states, lengths) -> list[torch.Tensor]:
    """All that a call gives, then the gradients of all that it read."""
    layer.backend = backend
    given = [value.detach().clone().requires_grad_() for value in (x, *states)]
    hx = tuple(given[1:]) if len(states) > 1 else given[1]
    output, finals, trace = layer(given[0], hx, lengths=lengths, return_gates=True)
    values = [output, *(finals if isinstance(finals, tuple) else [finals]), *(g for t in trace for g in t.values())]
    loss = sum(
        (value * torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view_as(value)).sum() for value in values
    )
    wanted = [*given, *layer.parameters()]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [
        *(v.detach() for v in values),
        *(torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted, strict=True)),
    ]


def check(made: Made, folder: Path, backend: str = "cpu") -> str | None:
    """None if the kernels equal the reference, or why there are none. Raises AssertionError if they do not."""
    cell = load(made, folder)
    torch.manual_seed(made.seed)
    layer = Recurrent(cell, 3, made.hidden, gates=made.gates, dtype=torch.float64, **made.options).eval()
    x = torch.randn(max(made.lengths), len(made.lengths), 3, dtype=torch.float64)
    places = layer.num_layers * (1 + layer.bidirectional)
    states = [0.5 * torch.randn(places, len(made.lengths), made.hidden, dtype=torch.float64) for _ in layer.spec.states]
    lengths = None if len(set(made.lengths)) == 1 else made.lengths
    layer, x, states = layer.to(made.dtype), x.to(made.dtype), [state.to(made.dtype) for state in states]
    expected = results(
        copy.deepcopy(layer).double(), "reference", x.double(), [each.double() for each in states], lengths
    )
    own = results(layer, "reference", x, states, lengths)
    try:
        found = results(layer, backend, x, states, lengths)
    except BackendError as error:
        assert "\n" not in str(error) and "Traceback" not in str(error), error
        return str(error)
    for place, (ours, theirs, right) in enumerate(zip(found, own, expected, strict=True)):
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        allowed = 1e-9 * scale
        if made.dtype == torch.float32:  # what the reference loses, and some roundings of a sum
            allowed = 10 * float((theirs - right).abs().max()) + 1e-5 * scale if right.numel() else 0.0
        assert torch.allclose(ours.double(), right, rtol=0, atol=allowed, equal_nan=True), (
            f"result {place} of {len(found)} is off by {float((ours - right).abs().max()):.3g}\n{made}\n{made.source}"
        )
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--matrices", action="store_true", help="cells with matrices of their own")
    given = parser.parse_args()
    refused: dict[str, int] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.cells):
            try:
                reason = check(make(seed, given.matrices), Path(folder), given.backend)
            except Exception as error:
                wrong += 1
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:3000]}\n", flush=True)
                continue
            if reason:
                refused[reason] = refused.get(reason, 0) + 1
    for reason, count in sorted(refused.items(), key=lambda pair: -pair[1]):
        print(f"refused {count} x: {reason}")
    print(f"{given.cells} cells, {sum(refused.values())} refused, {wrong} wrong")


if __name__ == "__main__":
    main()
