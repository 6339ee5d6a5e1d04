"""Runs a `ModelCase`: logits, losses, states and gradients of a language model against the reference in float64."""

import copy
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gatedrnn import LanguageModel, LanguageModelConfig
from gatedrnn.core.errors import GatedRNNError

from .calls import ModelCase, Score
from .calls_bench import Bench
from .calls_change import change
from .calls_expected import compare, precision
from .calls_tensors import Finding, Values, equal, error_of, ours, restride, where


class ModelBench:
    """A model as it is now; a change happens to its last layer."""

    def __init__(self, case: ModelCase) -> None:
        torch.manual_seed(case.seed % (1 << 40))
        config = LanguageModelConfig(
            vocabulary_size=case.vocabulary, cell=case.cell, embedding_size=case.sizes[-1], hidden_sizes=case.sizes,
            tied=case.tied, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0,
            **({"options": {"chunk_size": 1}} if case.cell == "onlstm" else {}),
        )  # fmt: skip
        self.case, self.dtype = case, getattr(torch, case.dtype)
        self.model = LanguageModel(config).to(self.dtype).eval()
        self.random = torch.Generator().manual_seed(case.seed % (1 << 40))
        self.states: Any = None
        self.kept: list[tuple[str, Tensor, Tensor]] = []


def ids_for(bench: ModelBench, score: Score) -> tuple[Tensor, Tensor | None, str]:
    """Tokens, targets, and what is wrong with them."""
    V, T, B, wrong = bench.case.vocabulary, score.steps, score.batch, ""
    tokens = torch.randint(V, (T, B), generator=bench.random)
    targets = torch.randint(V, (T, B), generator=bench.random)
    bad = {"high": V, "low": -1, "far": 1 << 40}.get(score.ids)
    if score.ids == "ignored" and T * B:
        targets.view(-1)[:: 2 if T * B > 1 else 1] = -100
    elif score.ids == "all_ignored":
        targets.fill_(-100)
    elif bad is not None and T * B:
        targets.view(-1)[-1], wrong = bad, score.ids
    elif score.ids == "tokens_high" and T * B:
        tokens.view(-1)[0], wrong = V, score.ids
    elif score.ids == "shape":
        targets, wrong = targets[..., None], score.ids
    if (wrong and score.strides == "expanded") or score.targets == "bool":  # which would hide it
        score = replace(score, strides="plain")
    wide = tokens, targets
    tokens = restride(tokens.to(getattr(torch, score.tokens)), score.strides)
    if not score.targets:
        return tokens, None, "" if wrong not in ("tokens_high",) else wrong
    if score.targets in ("float32", "bool"):
        wrong = wrong or score.targets
    targets = restride(targets.to(getattr(torch, score.targets)), score.strides)
    if score.targets not in ("float32", "bool"):
        for ids, before in zip((targets, tokens), reversed(wide), strict=True):
            if not torch.equal(ids.long(), restride(before, score.strides)):  # a narrow type holds another id
                fits = bool(((ids.long() >= 0) & (ids.long() < V)).all())
                wrong = "wrapped" if not wrong or fits else wrong
    return tokens, targets, wrong


def run_score(bench: ModelBench, score: Score) -> None:
    """One forward, checked."""
    tokens, targets, wrong = ids_for(bench, score)
    lengths = (
        torch.randint(1, score.steps + 1, (score.batch,), generator=bench.random).tolist() if score.lengths else None
    )
    model = bench.model
    saved = {n: p.detach().clone() for n, p in model.named_parameters()}
    _spoil(bench, score)
    carried = bench.states if score.carried and bench.states and bench.states[0][0].shape[1] == score.batch else None
    carried = None if carried is None else [tuple(s.detach().to(bench.dtype) for s in state) for state in carried]

    def expected(dtype: torch.dtype, same: bool) -> Values:
        reference = copy.deepcopy(model).to(dtype)
        for layer in reference.layers:
            layer.backend = "reference"
        with ExitStack() as stack:
            if score.autocast and same:
                stack.enter_context(torch.autocast("cpu", getattr(torch, score.autocast)))
            stack.enter_context(torch.enable_grad() if score.mode == "grad" else torch.no_grad())
            states = None if carried is None else [tuple(s.to(dtype) for s in state) for state in carried]
            out = reference(tokens, states, lengths=lengths)
            values = {f"state {k} {j}": s for k, state in enumerate(out.states) for j, s in enumerate(state)}
            if targets is None:
                values["logits"] = out.logits
                loss = out.logits.float().square().sum() if dtype != torch.float64 else out.logits.square().sum()
            else:
                logits = out.logits.flatten(0, 1)
                logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
                kept = targets.long().flatten()
                divisor = (kept != -100).sum() if score.divisor is None else score.divisor
                loss = F.cross_entropy(logits, kept, ignore_index=-100, reduction="sum") / divisor
                values["loss"] = loss
        return finish(values, loss, reference)

    def finish(values: Values, loss: Tensor, owner: Any) -> Values:
        values = {n: v.detach() for n, v in values.items()}
        if score.mode == "grad" and loss.requires_grad and score.batch:
            parameters = dict(owner.named_parameters())
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            values |= {
                f"gradient of {n}": torch.zeros_like(p).detach() if g is None else g
                for (n, p), g in zip(parameters.items(), found, strict=True)
            }
        return values

    def measured() -> Values:
        with ExitStack() as stack:
            if score.autocast:
                stack.enter_context(torch.autocast("cpu", getattr(torch, score.autocast)))
            mode = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
            stack.enter_context(mode[score.mode]())
            return _forward(bench, score, model, tokens, carried, targets, lengths, finish)

    try:
        found, error = error_of(measured)
        if error is not None and ours(error):
            narrow = targets is not None and targets.dtype != torch.int64
            if wrong or narrow or score.wrap in ("vmap", "export") or score.tokens not in ("int64", "int32"):
                return
            raise Finding("refused", where(error))
        if error is not None and score.tokens not in ("int64", "int32") and isinstance(error, RuntimeError):
            return  # nn.Embedding takes no others
        if isinstance(error, RuntimeError) and score.wrap == "vmap" and ".item()" in str(error):
            return  # ids are looked at, which vmap refuses
        if isinstance(error, RuntimeError) and wrong == "tokens_high" and score.wrap == "compile_inductor":
            return  # nn.Embedding, compiled, says so itself
        if wrong and wrong != "wrapped":
            if error is None:
                raise Finding("accepted", f"{wrong} ids{', ' + score.wrap if score.wrap else ''}: {_first(found)}")
            if score.wrap and "out of" in str(error):
                return  # PyTorch's own words, where ours cannot look at the numbers
            if "Inference tensors" in str(error):
                return  # a state that was made under inference_mode, which PyTorch refuses before the ids are looked at
            raise Finding("exception", f"of {wrong} ids: {where(error)}")
        same, fault = error_of(lambda: expected(bench.dtype, True))
        if error is not None:
            if fault is not None and type(fault) is type(error):
                return
            if wrong == "wrapped" or score.wrap == "export":
                return
            raise Finding("exception", where(error))
        if fault is not None:
            if wrong == "wrapped" or isinstance(fault, IndexError) or "Inference tensors" in str(fault):
                return
            raise Finding("accepted what the reference refuses", where(fault))
        exact = expected(torch.float64, False)
        names = found.keys() & exact.keys()
        exact, same = {n: exact[n] for n in names}, {n: same[n].to(found[n].dtype) for n in names}
        compare({n: found[n] for n in names}, exact, same, precision(score.autocast, bench.dtype))
        bench.kept += [(n, v, v.clone()) for n, v in found.items() if score.mode != "inference"]
    finally:
        with torch.no_grad():
            for name, p in model.named_parameters():
                if score.values != "normal":
                    p.copy_(saved[name])


def _first(found: Values) -> str:
    return ", ".join(f"{n}={v.flatten()[:3].tolist()}" for n, v in list(found.items())[-1:])


def _spoil(bench: ModelBench, score: Score) -> None:
    model, V = bench.model, bench.case.vocabulary
    row = int(torch.randint(V, (), generator=bench.random))
    with torch.no_grad():
        if score.values == "nan_decoder":
            model.decoder.weight[row, 0] = torch.nan
        elif score.values == "nan_embedding":
            model.embedding.weight[row, 0] = torch.nan
        elif score.values.endswith("_bias"):
            model.decoder.bias[row] = float(score.values.removesuffix("_bias"))


def _forward(
    bench: ModelBench, score: Score, model: Any, tokens: Tensor, states: Any, targets: Any, lengths: Any, finish: Any
) -> Values:
    options = {"targets": targets, "lengths": lengths, "divisor": score.divisor}

    def read(out: Any) -> tuple[Values, Tensor]:
        values = {f"state {k} {j}": s for k, state in enumerate(out.states) for j, s in enumerate(state)}
        if targets is None:
            values["logits"] = out.logits
            loss = out.logits.float().square().sum() if out.logits.dtype != torch.float64 else out.logits.square().sum()
        else:
            values["loss"] = loss = out.loss
        return values, loss

    call = model
    if score.wrap.startswith("compile"):
        call = torch.compile(model, backend="inductor" if score.wrap == "compile_inductor" else "aot_eager")
    elif score.wrap == "functional":
        given = dict(model.named_parameters())

        def call(*a: Any, **k: Any) -> Any:
            return torch.func.functional_call(model, given, a, k)

    elif score.wrap == "checkpoint":

        def call(*a: Any, **k: Any) -> Any:
            return checkpoint(lambda *a: model(*a, **k), *a, use_reentrant=False)

    elif score.wrap == "export":
        call = torch.export.export(model, (tokens, states), options).module()
    elif score.wrap == "func_grad" and score.mode != "inference":
        given = {n: p.detach() for n, p in model.named_parameters()}

        def loss_of(weights: Any) -> Any:
            values, loss = read(torch.func.functional_call(model, weights, (tokens, states), options))
            return loss, values

        gradients, values = torch.func.grad(loss_of, has_aux=True)(given)
        gradients = (
            {f"gradient of {n}": g for n, g in gradients.items()} if score.mode == "grad" and score.batch else {}
        )
        return {n: v.detach() for n, v in (values | gradients).items()}
    elif score.wrap == "vmap":
        both = torch.stack((tokens, tokens))
        found = torch.vmap(lambda ids: read(model(ids, states, **options))[0])(both)
        return {n: v[1].detach() for n, v in found.items()}
    elif score.wrap == "threads":
        failed: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(3):
                    with torch.no_grad():
                        model(tokens, states, **options)
            except Exception as error:
                failed.append(error)

        team = [threading.Thread(target=work) for _ in range(3)]
        for one in team:
            one.start()
        for one in team:
            one.join(30)
            if one.is_alive():
                raise Finding("hang", "a thread that scores does not end")
        if failed:
            raise failed[0]
    out = call(tokens, states, **options)
    bench.states = out.states
    values, loss = read(out)
    return finish(values, loss, model)


def run_model(case: ModelCase) -> None:
    """The whole program. Raises Finding."""
    torch.set_num_threads(case.threads)
    try:
        bench = ModelBench(case)
    except GatedRNNError as error:
        raise Finding("refused", where(error)) from error
    for entry in case.program:
        if isinstance(entry, Score):
            run_score(bench, entry)
        elif entry.what == "double":
            bench.model.double()
            bench.dtype = torch.float64
        else:
            layer: Any = bench.model.layers[-1]
            change(type("One", (), {"layers": [layer], "dtype": bench.dtype, "lenient": "", "calm": False})(), entry)  # type: ignore[arg-type]
        for name, value, clone in bench.kept:
            if not equal(value, clone):
                raise Finding("given out, then overwritten", name)
    if any(isinstance(e, Score) and e.wrap.startswith("compile") for e in case.program):
        torch._dynamo.reset()


__all__ = ["Bench", "run_model"]
