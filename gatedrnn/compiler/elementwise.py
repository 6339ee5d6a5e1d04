"""Reading operations that work element by element: each becomes the operations of a small graph."""

import functools

import torch

from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Graph


class ElementRules:
    """Rules, by the operator's name: PyTorch's node, then its arguments as they were read. Abstract: `Reader` has the others."""

    graph: Graph

    def _rsub(self, node, a, b):
        return self.graph.apply("sub", float(b), a)

    def _lt(self, node, a, b):
        return self.graph.apply("greater", b, a)

    def _le(self, node, a, b):
        return self.graph.apply("at_least", b, a)

    def _ne(self, node, a, b):
        return self.graph.apply("sub", 1.0, self.graph.apply("equal", a, b))

    def _logical_not(self, node, a):
        return self.graph.apply("sub", 1.0, a)

    _bitwise_not = _logical_not

    def _reciprocal(self, node, a):
        return self.graph.apply("div", 1.0, a)

    def _rsqrt(self, node, a):
        return self.graph.apply("div", 1.0, self.graph.apply("sqrt", a))

    def _clamp(self, node, a, low=None, high=None):
        a = a if low is None else self.graph.apply("greatest", a, low)
        return a if high is None else self.graph.apply("least", a, high)

    _clamp_min = _clamp

    def _clamp_max(self, node, a, high):
        return self._clamp(node, a, None, high)

    def _masked_fill(self, node, a, mask, number):
        return self.graph.apply("choose_nonzero", mask, self._scalar_tensor(node, number), a)

    def _scalar_tensor(self, node, number):
        kind = node.meta["val"].dtype
        if not kind.is_floating_point and number != torch.tensor(number, dtype=kind).item():
            raise UnsupportedError(f"the number {number} as {kind}")
        return torch.tensor(number, dtype=torch.float32).item() if node.meta["rounded"] else float(number)

    def _full(self, node, shape, number):
        return self._scalar_tensor(node, number)

    _full_like = _full

    def _zeros_like(self, node, a, *_):
        return 0.0

    _new_zeros = _zeros = _zeros_like

    def _ones_like(self, node, a, *_):
        return 1.0

    _new_ones = _ones = _ones_like

    def _where(self, node, condition, a, b):
        return self.graph.apply("choose_nonzero", condition, a, b)

    def _sigmoid_backward(self, node, d, y):
        return self.graph.apply("mul", d, self.graph.apply("sigmoid_slope", y))

    def _tanh_backward(self, node, d, y):
        return self.graph.apply("mul", d, self.graph.apply("tanh_slope", y))

    def _threshold_backward(self, node, d, y, threshold):
        return self.graph.apply("choose_nonzero", y, d, 0.0)

    def _pow(self, node, a, exponent):
        if not isinstance(exponent, int | float):
            raise UnsupportedError("a power that is computed")
        whole, half = divmod(abs(exponent), 1)
        if whole > 4 or half not in (0, 0.5):
            raise UnsupportedError(f"the power {exponent}")
        factors = [a] * int(whole) + [self.graph.apply("sqrt", a)] * (half > 0)
        found = functools.reduce(lambda x, y: self.graph.apply("mul", x, y), factors) if factors else 1.0
        return self.graph.apply("div", 1.0, found) if exponent < 0 else found
