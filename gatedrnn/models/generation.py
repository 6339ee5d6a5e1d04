"""Sampling text from a language model.

Dimensions: V vocabulary.
"""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.finite import finite
from gatedrnn.models.language_model import LanguageModel
from gatedrnn.models.surprisal import evaluating

_NUCLEUS = 1024  # tokens among which a nucleus is looked for first


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: list[int],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    exclude: Collection[int] = (),
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Sample ids without end, one at a time, from softmax(logits / temperature), the state carried.

    Args:
        model: in any mode; it is read in evaluation mode.
        prompt: the ids before the sampled ones, at least one (`<eos>` begins a text).
        temperature: above 0; small is greedy.
        top_k: sample from the k most probable only, None for all.
        top_p: sample from the fewest most probable whose probabilities, among those k, sum to p or more; in (0, 1].
        exclude: ids that are never sampled; the probabilities of the others are divided by their sum before `top_k` and `top_p`.
        generator: on the CPU; None for torch's global one.

    Equations: top_p is nucleus sampling, Holtzman et al. 2020. Departs: none.
    Raises: ArgumentError: an option is out of range, or a prompt id is. CheckpointError: a logit is not finite.
    """
    positive_number("generate.temperature", temperature)
    if top_k is not None:
        positive_int("generate.top_k", top_k)
    if not 0 < top_p <= 1:
        raise ArgumentError("generate.top_p", "must lie in (0, 1]", top_p, "Give a number such as 0.9")
    if not len(prompt):
        raise ArgumentError("generate.prompt", "must have at least one id", "none", "Begin with that of <eos>")
    excluded, size = sorted(set(exclude)), model.embedding.num_embeddings
    if len(excluded) >= size or not all(0 <= i < size for i in excluded):
        rule, got = f"must be ids in 0…{size - 1}, and not all of them", f"{len(excluded)} ids"
        raise ArgumentError("generate.exclude", rule, got, "Leave some ids out of exclude")
    device = model.embedding.weight.device
    with evaluating(model):
        given_T1 = torch.tensor(prompt, device=device)[:, None]
        states = model.advance(given_T1[:-1])[1] if len(prompt) > 1 else None  # whose logits nobody reads
        output = model(given_T1[-1:], states)
    while True:
        logits_V = finite("generate.logits", output.logits[-1, 0].double().cpu())
        logits_V[excluded] = -torch.inf
        weights_V = sampling_weights(logits_V, temperature, top_k, top_p)
        token = int(torch.multinomial(weights_V, 1, generator=generator))
        yield token
        with evaluating(model):
            output = model(torch.tensor([[token]], device=device), output.states)


def sampling_weights(logits_V: Tensor, temperature: float, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Relative probabilities [V] of what may be sampled, 0 for the rest; arguments as in `generate`."""
    weights_V = torch.softmax((logits_V - logits_V.max()) / temperature, -1)
    if top_k is None and top_p == 1:
        return weights_V
    most = min(top_k or len(weights_V), len(weights_V))
    first = min(most, _NUCLEUS) if top_k is None else most
    kept, ids = weights_V.topk(first)
    if first < most and float(kept.sum()) < top_p:  # seldom; to sort all takes long
        kept, ids = weights_V.topk(most)
    if top_k is not None:
        kept /= kept.sum()
    if top_p < 1:
        kept[kept.cumsum(0) - kept >= top_p] = 0  # those before suffice
    return torch.zeros_like(weights_V).scatter_(0, ids, kept)
