"""Sampling text from a language model."""

from collections.abc import Iterator

import torch

from gatedrnn.core.checks import positive_number
from gatedrnn.models.language_model import LanguageModel


@torch.no_grad()
def generate(
    model: LanguageModel, prompt: list[int], *, temperature: float = 1.0, generator: torch.Generator | None = None
) -> Iterator[int]:
    """Sample ids without end, one at a time, from softmax(logits / temperature), the state carried.

    Args:
        prompt: ids that came before, at least one (`<eos>` opens a text).
        temperature: above 0; small is greedy.
        generator: on the CPU; None for torch's global one.

    Raises: ArgumentError: the temperature is not above 0, or a prompt id is out of range.
    """
    positive_number("generate.temperature", temperature)
    device = model.embedding.weight.device
    output = model(torch.tensor(prompt, device=device)[:, None])
    while True:
        weights = torch.softmax(output.logits[-1, 0].double().cpu() / temperature, -1)
        token = int(torch.multinomial(weights, 1, generator=generator))
        yield token
        output = model(torch.tensor([[token]], device=device), output.states)
