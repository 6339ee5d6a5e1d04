"""Products inside a step: a row of H values times rows of U, or of a matrix of the cell's own, transposed.

A product is done by the driver, between two parts of the step. Its level says when: at level 0, where its left factor is a state
of the step before, together with U h'; else after all that its left factor is computed from.
"""

from dataclasses import dataclass
from typing import Any

from torch.fx import Node as FxNode

from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Matrix, Node, Wide, leaves_of


@dataclass(eq=False)
class Product:
    """One of them.

    Args:
        parts: its results, a load of ("product", gate) for rows of U, of ("own", part) for those of the cell's matrices.
        node, left: the left factor, PyTorch's node and the value.
        state: which of the states before the step that is, or None.
        gradient: that of the results, once the derivative is read.
    """

    parts: tuple[Node, ...]
    node: FxNode
    left: Any
    state: int | None
    gradient: Any = None


class Products:
    """Those of one step, as they are read.

    Args:
        first: the first gate whose product with U is inside the step.
        old: PyTorch's nodes of the states before the step.
    """

    def __init__(self, first: int, old: list[FxNode]) -> None:
        self._first, self._old = first, {node: k for k, node in enumerate(old)}
        self._known: set[FxNode] = set()
        self.of_part: dict[tuple[str, int], Product] = {}
        self._levels: dict[Product, int] = {}

    def result(self, node: FxNode, left_node: FxNode, left: Any, matrix: Matrix) -> Any:
        """What PyTorch's node of a product gives."""
        if node not in self._known:
            self._add(left_node, left, matrix)
            self._known.add(node)
        return matrix.rows

    def _add(self, left_node: FxNode, left: Any, matrix: Matrix) -> None:
        if isinstance(left, Wide | Matrix):
            raise UnsupportedError("a product inside the step of values of several gates")
        own = matrix.parts[0].args[0] == "own"
        product = Product(matrix.parts, left_node, left, self._old.get(left_node) if own else None)
        for part in matrix.parts:
            if not own and part.args[1] < self._first:
                raise UnsupportedError("a product inside the step with rows of U that its Spec leaves to `h_gates`")
            if part.args in self.of_part:
                raise UnsupportedError("more than one product inside the step with the same rows of a matrix")
            self.of_part[part.args] = product

    def gradient(self, value: Any, matrix: Matrix) -> int | None:
        """Take the gradient of a product's results.

        Returns: the place among `lefts` of its left factor, whose gradient the driver computes; None where the driver adds that
        to another by itself: to a state's, or to that of the first product with this left factor.
        """
        product = self.of_part.get(matrix.parts[0].args)
        if product is None or product.parts != matrix.parts or product.gradient is not None:
            raise UnsupportedError("a product inside the step with more than one gradient")
        product.gradient = value
        return self.lefts.index(product) if product in self.lefts else None

    @property
    def all(self) -> list[Product]:
        """Every product, in the order in which the step has them."""
        return list(dict.fromkeys(self.of_part.values()))

    @property
    def lefts(self) -> list[Product]:
        """A product for each left factor that the step computes."""
        found: dict[FxNode, Product] = {}
        for product in self.all:
            if product.state is None:
                found.setdefault(product.node, product)
        return list(found.values())

    def place_of_left(self, product: Product) -> int:
        """Which of `lefts` has its left factor."""
        return [each.node for each in self.lefts].index(product.node)

    def reads(self, values: list[Any], joined: dict[int, int]) -> list[Product]:
        """Those whose results these values are computed from. Args: joined: see `Equations`."""
        places: set[tuple[str, int]] = set()
        for kind, k in leaves_of(values):
            if kind in ("own", "product", "late", "full"):
                places.add(("own" if kind == "own" else "product", k))
            if kind == "full":
                places.add(("own", joined[k]))
        return [self.of_part[place] for place in sorted(places) if place in self.of_part]

    def level(self, product: Product, joined: dict[int, int]) -> int:
        """When it is done."""
        if product not in self._levels:
            before = self.reads([product.left], joined)
            ready = 1 + max((self.level(each, joined) for each in before), default=0)
            self._levels[product] = 0 if product.state is not None else ready
        return self._levels[product]
