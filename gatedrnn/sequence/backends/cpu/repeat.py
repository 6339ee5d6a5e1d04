"""Inference of a shape that was seen before, a stream above all: what a call needs is worked out once, then it only runs.

All but the addresses of the input, the states and the results stays as it was: sizes, packed weights, summed biases. A step of
a small layer then takes less time than PyTorch's dispatcher alone. Dimensions: T steps, B batch, D input, L layers, H hidden.
"""

import array
from collections.abc import Sequence

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu import memory, packs, team
from gatedrnn.sequence.backends.cpu.arguments import Loop, leading
from gatedrnn.sequence.backends.cpu.operators import layer_loop, packed_small
from gatedrnn.sequence.compressed import compressed
from gatedrnn.sequence.modes import products
from gatedrnn.sequence.plan import Plan, biases, plan_for
from gatedrnn.sequence.request import Request

_GIVEN = ("x", "out", "G", "cs", "h0", "c0", "hn", "cn", "scratch", "left")  # differ between calls


class Repeat:
    """Layers upon one another, in one direction, without gradients.

    Args:
        requests: one a layer, without noise, temperature or lengths; the `cpu` backend ran them just now.
        parameters: of all layers, to be watched.
    """

    def __init__(self, requests: Sequence[Request], parameters: Sequence[Tensor]) -> None:
        self._watch = packs.Watch(parameters)
        self._batch = requests[0].x_TBD.shape[1]
        self._circumstances = team.size(), products(self._batch)
        self._layers = [self._layer(request) for request in requests]

    def _layer(self, request: Request) -> tuple[Loop, "array.array[int]", list[int], int, int, object]:
        """Loop, its arguments, the places of those still to be given, H, reals of gates and cells a token, and what is held."""
        plan, p = plan_for(request.cell.step, request.spec), request.params
        assert isinstance(plan, Plan)
        (T, _, D), state = request.x_TBD.shape, request.state
        run, values = layer_loop(
            "forward", request.x_TBD.reshape(-1, D), p.weight_ih, p.weight_hh, None, next(iter(p.extras.values()), None),
            state[0], state[-1], None, None, T, plan, False, products(self._batch),
        )  # fmt: skip
        weights = p.weight_ih, p.weight_hh
        small = compressed(*weights)
        packed = packed_small(run, plan, *weights, None) if small else packs.find(weights, run.form)
        assert packed is not None
        values |= {"packed": True, "PW": packed[0], "PU": packed[1], "W": None, "U": None}
        values["bias"] = biases(plan, p.bias_ih, p.bias_hh, p.weight_ih)
        places = [run.free[name] for name in _GIVEN]
        return run, array.array("q", run.filled(values)), places, plan.hidden, leading(plan), values

    def fits(self, parameters: Sequence[Tensor]) -> bool:
        """Whether the layers' parameters, the threads and the products are what they were."""
        return self._circumstances == (team.size(), products(self._batch)) and self._watch.unchanged(parameters)

    def __call__(self, x_TBD: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output [T, B, H] and final states, each [L, B, H] as `states`; all contiguous and of the parameters' type."""
        T, B, _ = x_TBD.shape
        dtype, N = x_TBD.dtype, T * B
        finals = tuple(torch.empty_like(state) for state in states)
        h0, c0 = states[0].data_ptr(), states[-1].data_ptr()
        hn, cn, one = finals[0].data_ptr(), finals[-1].data_ptr(), len(states) == 1
        for run, fixed, places, H, apart, _ in self._layers:
            output = torch.empty(T, B, H, dtype=dtype)
            work = memory.empty(
                N * (apart + H) + B * H, dtype=dtype
            )  # gates, cells, and a final cell that no one wants
            gates, size = work.data_ptr(), dtype.itemsize
            cells = gates + N * apart * size
            last = cells + N * H * size if one else cn
            arguments = fixed[:]
            given = (x_TBD.data_ptr(), output.data_ptr(), gates, cells, h0, c0, hn, last, *run.lend())
            for place, value in zip(places, given, strict=True):
                arguments[place] = value
            team.run(run.kernel.address, arguments, run.threads)
            step = B * H * size
            h0, c0, hn, cn, x_TBD = h0 + step, c0 + step, hn + step, cn + step, output
        return x_TBD, finals
