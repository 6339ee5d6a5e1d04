"""Weights that stay in a scheme while they are trained: after every step they are as near to it as can be.

Equations: of the schemes, Li et al. 2018, sec. 4.3. The gradient is that of the projected weights, the step is made on the dense
ones, so that steps smaller than a code's add up (Courbariaux, Bengio & David 2015). Departs: the paper does not train again.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gatedrnn.models.saving import PretrainedModel
from gatedrnn.studies.compression.schemes import Places, Scheme, places_by_weight, small_form
from gatedrnn.weights.forms import FORMS


class Projection:
    """Dense weights → the weights that a scheme would store for them.

    For a low rank, the row space is updated by one multiplication (a power iteration) at each step. This costs much less than a
    singular-value decomposition, and follows weights that change slowly.

    Args: model: whose weights are projected; it is not kept. scheme: as for `compressed`. source: the weights that training
        begins with, in words.
    Attributes: name: scheme and source, for a checkpoint; memory: row spaces [columns, rank] of the last weights, by weight and
        first row, likewise.
    Raises: ArgumentError: as `compressed`.
    """

    def __init__(self, model: PretrainedModel, scheme: Scheme, source: str = "") -> None:
        self._places: dict[str, Places] = places_by_weight(model, scheme)
        # earlier versions chose these ranks by rows, and their checkpoints have row spaces of those
        changed = scheme.method == "svd" and scheme.rank is None and scheme.weights == "all"
        ranks = ", ranks of embeddings by their columns," if changed else ""
        self.name = f"{scheme!r}{ranks} of {source}" if source else repr(scheme)
        self.memory: dict[str, Tensor] = {}

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights concerned, by name, projected."""
        found = {}
        for name, places in self._places.items():
            matrix = weights[name].detach().clone()
            for first, last, setting in places:
                if setting is not None:
                    matrix[first:last] = self._projected(matrix[first:last], name, first, setting)
            found[name] = matrix
        return found

    def _projected(self, rows: Tensor, name: str, first: int, setting: Scheme) -> Tensor:
        place = f"{name}/{first}"
        space = self.memory.get(place)
        if setting.method == "svd" and space is not None:
            space = space.to(rows)  # of a float32 form, or of a checkpoint on the CPU
            space = space.clone(memory_format=torch.contiguous_format)  # products round by layout and alignment
            space = torch.linalg.qr(rows.t() @ (rows @ space)).Q
            self.memory[place] = space
            return (rows @ space) @ space.t()
        form, parts = small_form(rows, name, setting)
        if setting.method == "svd":
            self.memory[place] = torch.linalg.qr(parts["right"].t()).Q
        return FORMS[form](parts, rows.shape[1])
