"""Small calls of which nothing but numbers is wanted: described, prepared once for all that are alike, and run.

What is kept is how to run them, by the kinds, types and shapes of all that was given: no tensor, so that nothing becomes stale.
Dimensions: T time, B batch, D input, L layers, H hidden.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gatedrnn.cells import Params, Spec
from gatedrnn.layers.inputs import read_input, read_state
from gatedrnn.sequence import prepare
from gatedrnn.sequence.modes import WORTH_SPLITTING, described, products

if TYPE_CHECKING:
    from gatedrnn.layers.recurrent import RecurrentBase

_KNOWN: dict[Hashable, tuple[Spec, Any]] = {}
"""How to run, or None for calls that are run one layer at a time; the Spec, whose id is in the key, is held."""
_MOST_KNOWN = 1024
_SMALL = 1 << 16  # reals of an input: beyond, the time around the kernels is nothing
_KINDS = (Tensor, nn.Parameter)  # whose numbers are at their address; weights may also be compressed


@dataclass(slots=True, eq=False)
class Call:
    """A layer's call of which nothing but numbers is wanted.

    Args:
        key: all but the numbers.
        hx: initial states as given.
        params: by layer.
    """

    layer: "RecurrentBase"
    key: Hashable
    input: Tensor
    hx: Any
    params: list[Params]

    def prepared(self) -> Any:
        """How to run all layers at once; None where they are run one at a time. Raises: ArgumentError: as `forward`."""
        known = _KNOWN.get(self.key)
        if known is None:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            known = _KNOWN[self.key] = self.layer.spec, self._prepare()
        return known[1]

    def _prepare(self) -> Any:
        layer, owner = self.layer, type(self.layer).__name__
        if layer.bidirectional or layer.num_layers != len(self.params):  # told to have fewer, it has theirs still
            return None
        batch = read_input(owner, self.input, None, layer.input_size, layer.batch_first, layer._weight.dtype)
        states = read_state(owner, self.hx, layer.spec.states, layer._state_shapes(batch), batch)
        x_TBD = batch.x_TBD
        inputs = [x_TBD] + [x_TBD.new_empty(*x_TBD.shape[:2], layer.hidden_size)] * (layer.num_layers - 1)
        requests = [layer.request(place, x, state) for place, (x, state) in enumerate(zip(inputs, states, strict=True))]
        return prepare(requests, layer.backend)

    def run(self, prepared: Any) -> Any:
        """What the layer returns."""
        layer, x, hx = self.layer, self.input, self.hx
        single, swapped = x.dim() == 2, layer.batch_first and x.dim() == 3
        x_TBD = x.unsqueeze(1) if single else x.transpose(0, 1) if swapped else x
        states = hx if isinstance(hx, (tuple, list)) else (hx,)
        if hx is None:
            shape = (len(self.params), *(() if single else x_TBD.shape[1:2]), layer.spec.hidden_size)
            states = (x.new_zeros(shape),) * len(layer.spec.states)
        output, finals = prepared(x_TBD, states, self.params)
        output = output.squeeze(1) if single else output.transpose(0, 1) if swapped else output
        return output, finals if len(finals) > 1 else finals[0]


def read_call(layer: "RecurrentBase", input: Any, hx: Any) -> Call | None:
    """The call, or None where it is large, a random number is drawn, or more than numbers is wanted."""
    gates, training, held = layer.gates, layer.training, layer._parameters
    if type(input) not in _KINDS or input.numel() > _SMALL or not isinstance(layer.backend, str):
        return None
    if layer.proj_size or gates.temperature_when(training) != 1.0:
        return None
    if training and (layer.dropout or layer.weight_dropout or gates.noise_probability):
        return None
    if getattr(layer.request, "__func__", None) is not type(layer).plain_request:  # it was given one of its own
        return None
    states = () if hx is None else tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    for state in states:
        if type(state) not in _KINDS:
            return None
    given, params = [input, *states], []
    for names in layer._names:
        weights = list(map(held.get, names.values()))
        given += weights
        params.append(layer.as_params(weights))
    facts = described(given)
    if facts is None or None in facts[1:]:  # a weight that is computed, as when parametrised
        return None
    spec, batch_first = layer.spec, layer.batch_first
    size = 1 if input.dim() < 3 else input.shape[0 if batch_first else 1]
    rounded = size >= WORTH_SPLITTING and products(size)  # else autocast decides, which is among the facts
    own = layer.cell.step, id(spec), layer.backend, batch_first, layer.bidirectional
    sizes = layer.num_layers, layer.input_size, layer.hidden_size
    key = (*own, *sizes, type(hx), rounded, *facts)
    return Call(layer, key, input, hx, params)
