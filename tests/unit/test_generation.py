"""What sampling begins with."""

from itertools import islice

import pytest
import torch

from gatedrnn.models import LanguageModel, LanguageModelConfig, generate


@pytest.fixture
def model():
    torch.manual_seed(1)
    model = LanguageModel(LanguageModelConfig(9, cell="lstm", embedding_size=8, hidden_sizes=(8,)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("prompt", [[4], [4, 7], [1, 4, 2, 7, 7, 3]])
def test_the_whole_prompt_counts(model, prompt):
    ids = list(prompt)
    for _ in range(12):
        ids.append(int(model(torch.tensor(ids)[:, None]).logits[-1, 0].argmax()))
    assert [*prompt, *islice(generate(model, prompt, top_k=1), 12)] == ids
