"""Reading PyTorch's nodes into a small graph."""

import functools
import itertools
import math
import operator
from dataclasses import replace
from typing import Any, final

import torch
from torch.fx import Node as FxNode

from gatedrnn.compiler.elementwise import ElementRules
from gatedrnn.compiler.errors import UnsupportedError, shape_told
from gatedrnn.compiler.graph import BINARY, UNARY, Graph, Matrix, Node, Wide, is_number, leaves_of
from gatedrnn.compiler.products import Products

_HARMLESS = {"correction", "keepdim", "dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
_KINDS = {torch.float32, torch.bool, torch.int64, torch.int32}
"""Types of a trace's values, all of which are real numbers here; PyTorch rounds or cuts those of any other type."""


@final
class Reader(ElementRules):
    """Reads PyTorch's nodes into a `Graph`.

    Args:
        known: what stands for a node of PyTorch's graph instead of its computation: inputs, and what is kept.
        products: those inside the step, as far as they were read.
        lines: where the step's file calls each operation.
        chunk: C, the units of a chunk.
        cuts: of each slice's whole row, first element and end, the sizes of the values that stand side by side in that row; what
            the step is read with writes it, and what its derivative is read with reads it.
        backward: whether the derivative is read.
    """

    def __init__(
        self, graph: Graph, known: dict[FxNode, Any], products: Products, lines: dict[str, str], chunk: int,
        cuts: dict[tuple[int, int, int], list[int]], backward: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self._known, self._lines, self._backward = graph, dict(known), lines, backward
        self._products, self._chunk, self._rows = products, chunk, next(iter(known)).meta["val"].shape[0]
        self._cuts = cuts

    def read(self, node: Any) -> Any:
        """The value of a node of PyTorch's graph, or of an argument that is none."""
        if not isinstance(node, FxNode):
            if isinstance(node, float | int) and not abs(node) <= math.inf:
                raise UnsupportedError("the constant NaN")
            return [self.read(each) for each in node] if isinstance(node, list | tuple) else node
        if node not in self._known:
            if node.op != "call_function":
                raise UnsupportedError(
                    "params.weight_ih or params.bias_ih, which only the product with the input reads"
                )
            target: Any = node.target
            name = target.__name__.split(".")[0] if target is not operator.getitem else "getitem"
            rule = self._rule(name.strip("_"))
            if rule is None:
                raise UnsupportedError(f"the operation {name}{self._line(name)}")
            if odd := node.kwargs.keys() - _HARMLESS:
                raise UnsupportedError(f"the operation {name} with {', '.join(sorted(odd))}{self._line(name)}")
            args = [self.read(arg) for arg in node.args]
            self._check_kind(node, name)
            try:
                self._known[node] = rule(node, *args)
            except UnsupportedError as error:
                raise UnsupportedError(str(error) + self._line(name) * ("(" not in str(error))) from error
            except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise UnsupportedError(f"the operation {name}{self._line(name)} of such values") from error
            self._check_size(node, name)
        return self._known[node]

    def _rule(self, name: str) -> Any:
        """What makes a value of an operation's node and arguments, or None."""
        if op := UNARY.get(name):
            return lambda node, a: self.graph.apply(op, a)
        if op := BINARY.get(name):
            return lambda node, a, b: self.graph.apply(op, a, b)
        return getattr(self, f"_{name}", None)

    def _line(self, name: str) -> str:
        """Where the step calls an operation, if it does."""
        return f" ({self._lines[name]})" if name in self._lines else ""

    def _check_size(self, node: FxNode, name: str) -> None:
        """Refuse a value that has not as many elements a row as PyTorch's: its shape means more than its elements."""
        value, tensor = self._known[node], node.meta.get("val")
        if isinstance(value, Matrix) and value.shape != list(node.meta["val"].shape):
            raise UnsupportedError(f"the operation {name} of a matrix{self._line(name)}")
        if not isinstance(value, Node | Wide) or not isinstance(tensor, torch.Tensor):
            return
        if not value.size:
            if not self._backward and not self._of_a_row(value, tensor.shape):
                raise UnsupportedError(f"the operation {name} across rows of the batch{self._line(name)}")
            return
        if value.size != _elements(tensor.shape):
            raise UnsupportedError(
                f"the operation {name} that gives {shape_told(tensor.shape, self._rows)}{self._line(name)}"
            )

    def _of_a_row(self, number: Any, shape: torch.Size) -> bool:
        """Whether a number that is computed of a row's values has the shape of one number a row."""
        if list(shape[:1]) == [self._rows] and self._rows not in shape[1:]:
            return True
        return all(kind == "extra" for kind, _ in leaves_of([number]))

    def _check_kind(self, node: FxNode, name: str) -> None:
        """Refuse arithmetic of truth values, logic of others, and numbers that are cut off: here every value is a real number."""
        given = [arg.meta.get("val") for arg in node.all_input_nodes]
        kinds = {each.dtype for each in given if isinstance(each, torch.Tensor)}
        logic = name.startswith(("logical_", "bitwise_"))
        if (logic and kinds - {torch.bool}) or (name in ("add", "sub", "neg", "pow") and kinds == {torch.bool}):
            odd = "values that are not true or false" if logic else "truth values"
            raise UnsupportedError(f"the operation {name} of {odd}{self._line(name)}")
        made = getattr(node.meta.get("val"), "dtype", torch.float32)
        cut = made == torch.bool or (not made.is_floating_point and any(kind.is_floating_point for kind in kinds))
        if name != "_to_copy" and (made not in _KINDS or (cut and name in ("sum", "cumsum"))):
            raise UnsupportedError(f"the operation {name} that gives {made}{self._line(name)}")

    def _along(self, node: FxNode, dim: int, most: int = 2) -> None:
        """Refuse a dimension that is not the last, or a shape of more dimensions."""
        given: Any = node.args[0][0] if isinstance(node.args[0], list | tuple) else node.args[0]
        shape = given.meta["val"].shape
        if dim % len(shape) != len(shape) - 1:
            raise UnsupportedError(f"an operation along dimension {dim} of {shape_told(shape, self._rows)}")
        if len(shape) > most:
            raise UnsupportedError("an operation over chunks other than a sum or a mean")

    # Rules, by the operator's name: the node, then its arguments. Those of single elements stand in `elementwise`.

    def _softmax(self, node, a, dim, half):
        self._along(node, dim)
        a = self._row(node.args[0], a)
        return self.graph.node("softmax", a, size=a.size)

    def _softmax_backward_data(self, node, d, p, *_):
        graph = self.graph
        whole = graph.node("sum", graph.apply("mul", d, p), size=0)
        return graph.apply("mul", p, graph.apply("sub", d, whole))

    def _scan(self, node, x, reverse, exclusive):
        x = self._row(node.args[0], x)
        return self.graph.node("scan", x, reverse, exclusive, size=x.size)

    def _one_hot(self, node, p):
        return self.graph.node("one_hot", p, size=p.size)

    def _flip(self, node, x, dims):
        self._along(node, *dims)
        return x.args[0] if isinstance(x, Node) and x.op == "flip" else self.graph.node("flip", x, size=_last(node))

    def _cumsum(self, node, x, dim):
        self._along(node, dim)
        if isinstance(x, Node) and x.op == "flip":  # summed from the other end
            above = self._scan(node, x.args[0], True, False)
            return self.graph.node("flip", above, size=above.size)
        return self._scan(node, x, False, False)

    def _same(self, node, value, *_, **__):
        return value

    _alias = _unsqueeze = _squeeze = _clone = _same

    def _detach(self, node, value):
        if isinstance(value, Matrix) and not self._backward:
            raise UnsupportedError("a product inside the step with a matrix that is detached")
        return value

    def _to_copy(self, node, value):
        if node.kwargs.get("dtype", torch.float32) != torch.float32:
            raise UnsupportedError(f"a conversion to {node.kwargs['dtype']}")
        return value

    def _expand(self, node, value, shape):
        before = node.args[0].meta["val"].shape
        if len(shape) == 3 and shape[-1] != before[-1]:  # a chunk's value for each of its units
            value = self._row(node.args[0], value)
            self._check_chunk(shape[-1])
            return self.graph.node("spread", value, shape[-1], size=value.size * shape[-1])
        if isinstance(value, Node) and value.size == 1 < shape[-1]:
            return self._reduced("sum", "add", value)
        return value

    def _view(self, node, value, shape):
        if isinstance(shape, torch.dtype):
            raise UnsupportedError(f"the bits of values read as {shape}")
        if isinstance(value, Wide) and len(shape) != 2:
            raise UnsupportedError("values of several gates in another shape")
        return value

    _unsafe_view = _view

    def _check_chunk(self, units: int) -> None:
        if units != self._chunk:
            raise UnsupportedError(f"chunks of {units} units, where its gates have chunks of {self._chunk}")

    def _sum(self, node, value, dims=None, keep=False):
        shape = node.args[0].meta["val"].shape
        if len(dims or shape) != 1:
            raise UnsupportedError(f"a sum over more than one dimension{self._line('sum')}")
        (dim,) = dims or [0]
        dim %= len(shape)
        if dim == 0 and self._backward:  # over the batch, of what a parameter's gradient gets from each row
            return value
        self._along(node, dim, 3)
        if len(shape) == 3:  # over the units of a chunk
            value = self._row(node.args[0], value)
            if shape[-1] == 1:
                return value
            self._check_chunk(shape[-1])
            return self.graph.node("chunk_sum", value, shape[-1], size=value.size // shape[-1])
        if is_number(value):
            return self.graph.apply("mul", value, shape[-1])
        return self._reduced("sum", "add", value)

    def _reduced(self, op, join, value):
        """A number of the whole row."""
        parts = value.parts if isinstance(value, Wide) else [value]
        found = [part if is_number(part) else self.graph.node(op, part, size=0) for part in parts]
        return functools.reduce(lambda a, b: self.graph.apply(join, a, b), found)

    def _row(self, given, value):
        """A value of one size, of each element of what PyTorch's node `given` gives: a number stands for equal ones."""
        if isinstance(value, Wide):
            raise UnsupportedError("values of several gates in one sum, softmax or chunk")
        return self.graph.node("same", value, size=_elements(given.meta["val"].shape)) if is_number(value) else value

    def _mean(self, node, value, dims=None, keep=False):
        return self.graph.apply("div", self._sum(node, value, dims, keep), _last(node))

    def _amax(self, node, value, dims=(), keep=False):
        if len(dims) != 1:
            raise UnsupportedError("a maximum over more than one dimension")
        self._along(node, *dims)
        return self._reduced("max", "greatest", value)

    def _amin(self, node, value, dims=(), keep=False):
        negative = self.graph.apply("neg", value)
        return self.graph.apply("neg", self._amax(node, negative, dims))

    def _var_mean(self, node, value, dims=None):
        if dims and len(dims) == 1:
            self._along(node, *dims)
        mean = self._mean(node, value, dims)
        away = self.graph.apply("sub", value, mean)
        squares = self._sum(node, self.graph.apply("mul", away, away), dims)
        freedom = max(0, _last(node) - node.kwargs.get("correction", 1))  # as PyTorch, which divides by 0 then
        return [self.graph.apply("div", squares, freedom), mean]

    def _var(self, node, value, dims=None):
        return self._var_mean(node, value, dims)[0]

    def _cat(self, node, values, dim=0):
        self._along(node, dim)
        rows = [
            value if isinstance(value, Wide) else self._row(n, value)
            for n, value in zip(node.args[0], values, strict=True)
        ]
        parts = [part for row in rows for part in (row.parts if isinstance(row, Wide) else [row])]
        return parts[0] if len(parts) == 1 else Wide(parts)

    def _split_with_sizes(self, node, value, sizes, dim=0):
        edges = [0]
        for size in sizes:
            edges.append(edges[-1] + size)
        if isinstance(value, Matrix):
            self._rows_of(value, dim)
        else:
            self._along(node, dim)
            if is_number(value):
                return [value] * len(sizes)
            value = value if isinstance(value, Wide) else Wide([value])
        return [value.cut(a, b) for a, b in itertools.pairwise(edges)]

    def _rows_of(self, matrix, dim):
        if dim % 2 or matrix.turned:
            raise UnsupportedError("a part of a matrix that is not whole rows")

    def _split(self, node, value, size, dim=0):
        whole = node.args[0].meta["val"].shape[dim]
        return self._split_with_sizes(node, value, [min(size, whole - k) for k in range(0, whole, size)], dim)

    def _getitem(self, node, values, k):
        return values[k]

    def _slice(self, node, value, dim=0, first=0, last=None, step=1):
        shape = node.args[0].meta["val"].shape
        first, last, step = slice(first, last, step).indices(shape[dim])
        if isinstance(value, Matrix):
            self._rows_of(value, dim)
            if step != 1:
                raise UnsupportedError("a part of a matrix that is not whole rows in their order")
            return value.cut(first, first + node.meta["val"].shape[0])
        self._along(node, dim, 3)
        if is_number(value):
            return value
        if step == 1 and first < last:
            self._note_cut(value, first, last)
            if isinstance(value, Wide):
                return value.cut(first, last)
            if first == 0:
                return value if last == value.size else self.graph.node("head", value, size=last)
        raise UnsupportedError("a slice within a gate that is empty or does not begin at its first element")

    def _note_cut(self, value, first, last):
        """Note what a slice is cut out of; nothing where slices of one kind differ in that."""
        if not self._backward:
            sizes = [part.size for part in value.parts] if isinstance(value, Wide) else [value.size]
            if self._cuts.setdefault((value.size, first, last), sizes) != sizes:
                self._cuts[value.size, first, last] = []

    def _slice_backward(self, node, d, shape, dim, first, last, step):
        whole = shape[-1]
        first, last, step = slice(first, last, step).indices(whole)
        sizes = self._cuts.get((whole, first, last), [])
        if len(sizes) > 1:
            return self._beside_zeros(d, sizes, first, last)
        if sizes:
            d = self._row(node.args[0], d)
            return d if last == whole else self.graph.node("padded", d, size=whole)
        raise UnsupportedError(f"slices{self._line('slice')} of several kinds with the same bounds, not by spec.split")

    def _beside_zeros(self, d, sizes, first, last):
        """What elements first … last − 1 of values side by side have, and zeros for the others."""
        starts = list(itertools.accumulate(sizes, initial=0))
        inside = [k for k, at in enumerate(starts[:-1]) if first <= at < last]
        parts = d.parts if isinstance(d, Wide) else [d] * len(inside) if is_number(d) else [d]
        given = dict(zip(inside, parts, strict=True))
        found = {k: self.graph.node("same", one, size=sizes[k]) if is_number(one) else one for k, one in given.items()}
        return Wide([found.get(k) or self.graph.node("zeros", size=n) for k, n in enumerate(sizes)])

    def _permute(self, node, value, dims=(1, 0)):
        if not isinstance(value, Matrix) or [dim % 2 for dim in dims] != [1, 0]:
            raise UnsupportedError("dimensions in another order")
        return replace(value, turned=not value.turned)

    _t = _permute

    def _transpose(self, node, value, a, b):
        return self._permute(node, value, sorted((a % 2, b % 2), reverse=True))

    def _addmm(self, node, bias, left, matrix):
        if not (isinstance(matrix, Matrix) and _of_u(matrix)):
            return self.graph.apply("add", bias, self._product(node, left, matrix))
        parts = bias.parts if isinstance(bias, Wide) else [bias]
        if [part.args for part in parts] != [("bias", part.args[1]) for part in matrix.parts]:
            raise UnsupportedError("a product inside the step whose bias is not b_hh's of the same rows")
        return self._product(node, left, matrix)

    def _mm(self, node, left, matrix):
        if isinstance(matrix, Matrix) and matrix.turned and _of_u(matrix) and not self._backward:
            raise UnsupportedError("a product inside the step without its rows' b_hh")
        return self._product(node, left, matrix)

    def _product(self, node, left, matrix):
        if not isinstance(matrix, Matrix):
            raise UnsupportedError("a product with something other than rows of U or of a matrix of the cell's own")
        if matrix.turned:
            return self._products.result(node, node.args[-2], left, matrix)
        if not self._backward:
            raise UnsupportedError("a product inside the step with a matrix that is not transposed")
        place = self._products.gradient(left, matrix)
        return 0.0 if place is None else self.graph.load("d_left", place, matrix.columns)


def _of_u(matrix: Matrix) -> bool:
    return all(part.args[0] == "product" for part in matrix.parts)


def _elements(shape: torch.Size) -> int:
    """How many a row has, or a parameter."""
    return shape[1:].numel() if len(shape) > 1 else shape.numel()


def _last(node: FxNode) -> int:
    """Elements of a row of the operation's argument."""
    given: Any = node.args[0]
    return given.meta["val"].shape[-1]


def read(order: list[FxNode], reader: Reader, nodes: list[Any]) -> list[Any]:
    """The values of nodes of PyTorch's graph; they are read in its `order`, so that none is deep."""
    wanted = set()
    stack = [node for node in nodes if node is not None]
    while stack:
        node = stack.pop()
        if node not in wanted and node not in reader._known:
            wanted.add(node)
            stack += node.all_input_nodes
    for node in order:
        if node in wanted:
            reader.read(node)
    return [None if node is None else reader.read(node) for node in nodes]
