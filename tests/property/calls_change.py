"""Everything that a user may do to a layer between two calls."""

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from gatedrnn import Gates, Recurrent

from .calls import Change
from .calls_bench import Bench
from .calls_tensors import Finding, Sub, SubParameter, where

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.3),
    "adam": lambda p: torch.optim.Adam(p, 0.3, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, 0.3, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, 0.3, fused=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, 0.3, fused=True),
    "adagrad_fused": lambda p: torch.optim.Adagrad(p, 0.3, fused=True),
}


def change(bench: Bench, entry: Change) -> None:
    """Make the change; where torch refuses it, nothing has happened. Raises Finding where we do."""
    layer = bench.layers[0]
    try:
        with torch.no_grad():
            _change(bench, layer, entry.what, entry.where)
    except Finding:
        raise
    except Exception as error:
        if "outside" not in where(error).split(":")[0]:
            raise Finding("change", f"{entry.what}: {where(error)}") from error


def _owner(layer: nn.Module, where: int) -> tuple[str, Tensor]:
    """A parameter that stands under its own name, chosen by number."""
    own = [(name, p) for name, p in layer.named_parameters(recurse=False)]
    return own[where % len(own)] if own else next(layer.named_parameters())


def _change(bench: Bench, layer: Any, what: str, where: int) -> None:
    name, p = _owner(layer, where)
    random = torch.Generator().manual_seed(where)
    fresh = torch.randn(p.shape, generator=random).to(p) * 0.5 if not p.is_meta else torch.zeros_like(p)
    if what in OPTIMISERS or what == "adam_fused_column":
        _step(layer, what, where, random)
    elif what == "data":
        p.data.add_(fresh)
    elif what == "data_element":
        p.data.view(-1)[(where * 7919) % p.numel()] += 1.0
    elif what == "data_column":
        p.data[..., -1 - where % p.shape[-1]] += 1.0
    elif what == "numpy_edit":
        p.data.numpy()[...] += 0.5
    elif what == "copy":
        p.copy_(fresh)
    elif what == "copy_all":
        for q in layer.parameters():
            q.mul_(0.5)
    elif what == "set_data":
        p.data = fresh
    elif what == "functional_edit":
        torch.nn.init.uniform_(p, -0.5, 0.5)
    elif what == "load_state_dict":
        state = {n: v * 0.7 if v.is_floating_point() else v for n, v in layer.state_dict().items()}
        layer.load_state_dict(state, assign=bool(where % 2))
    elif what == "new_parameter":
        setattr(layer, name, nn.Parameter(fresh))
    elif what == "new_shared_storage":
        setattr(layer, name, nn.Parameter(p.data))
    elif what == "vector_to_parameters":
        vector = nn.utils.parameters_to_vector(layer.parameters())
        nn.utils.vector_to_parameters(vector * 0.8, layer.parameters())
    elif what == "swap_tensors":
        torch.utils.swap_tensors(p, nn.Parameter(fresh))
    elif what in ("swap_other", "tie_other", "swap_same"):
        _exchange(bench, layer, what)
    elif what == "tie_layers":
        names = dict(layer.named_parameters(recurse=False))
        twins = [(a, b) for a in names for b in names if a < b and names[a].shape == names[b].shape]
        a, b = twins[where % len(twins)]
        setattr(layer, b, getattr(layer, a))
    elif what in ("view", "offset", "transposed", "strided_parameter", "expanded", "neg"):
        if bench.lenient != "subclass" or what != "neg":  # PyTorch's own products of such a weight are wrong
            setattr(layer, name, _laid(p, what))
    elif what in ("double_and_back", "double", "float", "half"):
        _convert(bench, layer, what)
    elif what in ("deepcopy", "pickle", "save_load", "save_whole", "weights_only"):
        if bench.lenient != "subclass" or what not in (
            "save_load",
            "weights_only",
        ):  # PyTorch does not load such classes so
            _renew(bench, layer, what)
    elif what == "flatten":
        layer.flatten_parameters()
    elif what == "share_memory":
        if bench.lenient != "subclass":  # torch.nn.LSTM with such weights dies here too
            layer.share_memory()
    elif what == "requires_grad_off":
        layer.requires_grad_(False)
    elif what == "requires_grad_on":
        layer.requires_grad_(True)
    elif what in ("nan_weight", "inf_weight"):
        p.view(-1)[(where * 7919) % p.numel()] = torch.nan if what == "nan_weight" else -torch.inf
    elif what == "delete_bias":
        layer.bias_hh_l0 = None
        bench.lenient = what
    elif what.startswith("backend_"):
        layer.backend = what.removeprefix("backend_")
    elif what in ("resize_wrong", "wrong_dtype_one", "meta_one"):
        bad = {
            "resize_wrong": lambda: fresh[:-1],
            "wrong_dtype_one": lambda: fresh.to(torch.float64 if fresh.dtype != torch.float64 else torch.float32),
            "meta_one": lambda: fresh.to("meta"),
        }[what]()
        setattr(layer, name, nn.Parameter(bad))
        bench.lenient = what
    elif what in ("subclass", "plain_subclass", "parameter_subclass"):
        _subclass(bench, layer, what, name, p)
    else:
        _reparametrise(bench, layer, what, where)


def _step(layer: Any, what: str, where: int, random: torch.Generator) -> None:
    """One step of an optimiser; "column" changes a single column of one weight."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    if what == "adam_fused_column":
        parameters = [layer.weight_ih_l0] if where % 2 else [layer.weight_hh_l0]
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=random).to(p)
        if what == "adam_fused_column":
            column = p.shape[-1] - 1 - where % min(p.shape[-1], 20)
            p.grad[..., :column] = 0
            p.grad[..., column + 1 :] = 0
    OPTIMISERS["adam_fused" if what == "adam_fused_column" else what](parameters).step()
    layer.zero_grad()


def _exchange(bench: Bench, layer: Any, what: str) -> None:
    other = bench.layers[1]
    if what == "swap_same":
        other = copy.deepcopy(layer)
        for p in other.parameters():
            p.mul_(-0.5)
    mine, theirs = dict(layer.named_parameters(recurse=False)), dict(other.named_parameters(recurse=False))
    for name in mine.keys() & theirs.keys():
        if mine[name].shape == theirs[name].shape and mine[name].dtype == theirs[name].dtype:
            if what != "tie_other":
                setattr(layer, name, theirs[name])
            setattr(other, name, mine[name])


def _laid(p: Tensor, what: str) -> nn.Parameter:
    """The same values in another place of memory."""
    if what == "view":
        return nn.Parameter(torch.cat((p, p))[len(p) :])
    if what == "offset":
        return nn.Parameter(torch.cat((p.new_zeros(1), p.reshape(-1)))[1:].view(p.shape))
    if what == "transposed":
        return nn.Parameter(p.t().contiguous().t())
    if what == "strided_parameter":
        return nn.Parameter(torch.stack((p, torch.full_like(p, torch.nan)), -1)[..., 0])
    if what == "neg":
        return nn.Parameter(torch._neg_view(-p))
    return nn.Parameter(p[:1].expand(p.shape))


def _convert(bench: Bench, layer: Any, what: str) -> None:
    if what == "double_and_back":
        for one in bench.layers:
            one.double()
            one.to(bench.dtype)
        return
    bench.dtype = {"double": torch.float64, "float": torch.float32, "half": torch.bfloat16}[what]
    for one in bench.layers:
        one.to(bench.dtype)


def _renew(bench: Bench, layer: Any, what: str) -> None:
    """The layer again, by another way; the old one is changed so that nothing of it may be used."""
    if what == "deepcopy":
        new = copy.deepcopy(layer)
    elif what == "pickle":
        new = pickle.loads(pickle.dumps(layer))
    elif what == "save_load":
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        layer.load_state_dict(torch.load(file, weights_only=True))
        return
    else:
        file = io.BytesIO()
        torch.save({"gates": layer.gates, "state": layer.state_dict()} if what == "weights_only" else layer, file)
        file.seek(0)
        if what == "weights_only":
            try:
                loaded = torch.load(file, weights_only=True)
            except pickle.UnpicklingError as error:
                raise Finding("weights_only", str(error)[:200]) from error
            layer.load_state_dict(loaded["state"])
            layer.gates = loaded["gates"]
            assert isinstance(layer.gates, Gates) and isinstance(layer, nn.Module) and Recurrent
            return
        new = torch.load(file, weights_only=False)
    for p in layer.parameters():
        p.data.fill_(0.25)
    bench.layers[0] = new


def _subclass(bench: Bench, layer: Any, what: str, name: str, p: Tensor) -> None:
    if what == "parameter_subclass":
        setattr(layer, name, SubParameter(p.detach().clone()))
        return
    if what == "subclass":
        from torch.testing._internal.two_tensor import TwoTensor

        made: Tensor = TwoTensor(p.detach().clone(), p.detach().clone())
    else:
        made = p.detach().clone().as_subclass(Sub)
    setattr(layer, name, nn.Parameter(made))
    bench.lenient = "subclass"


def _reparametrise(bench: Bench, layer: Any, what: str, where: int) -> None:
    weights = [name for name in bench.names(0) if name.startswith("weight") and getattr(layer, name).dim() > 1]
    name = weights[where % len(weights)]
    bench.calm = bench.calm or "spectral" in what
    with torch.enable_grad():
        if what == "prune":
            prune.random_unstructured(layer, name, 0.5)
        elif what == "prune_all":
            for each in bench.names(0):
                prune.l1_unstructured(layer, each, 0.3)
        elif what == "prune_remove":
            prune.random_unstructured(layer, name, 0.5)
            prune.remove(layer, name)
        elif what == "weight_norm":
            parametrizations.weight_norm(layer, name)
        elif what == "spectral_norm":
            parametrizations.spectral_norm(layer, name)
        elif what == "orthogonal":
            parametrizations.orthogonal(layer, name)
        elif what == "old_weight_norm":
            nn.utils.weight_norm(layer, name)
        elif what == "old_spectral_norm":
            nn.utils.spectral_norm(layer, name)
        else:
            raise ValueError(what)
