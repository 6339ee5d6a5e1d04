"""Weights that a checkpoint of transformers lacks: drawn as `LanguageModel` draws its own.

transformers marks what it has read by the attribute `_is_hf_initialized`, and lets torch.nn.init pass over what is marked.
"""

import torch
from torch import nn

from gatedrnn.layers import Recurrent
from gatedrnn.models import LanguageModel
from gatedrnn.models.language_model import draw_weights


def mark_drawn(model: nn.Module) -> None:
    """Mark the parameters of a model that has just been built, so that they are not drawn again."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]


@torch.no_grad()
def draw(module: nn.Module, model: LanguageModel) -> None:
    """Draw the parameters of one module of a model that are not marked."""
    if isinstance(module, nn.Embedding | nn.Linear):
        draw_weights(module)
    elif isinstance(module, Recurrent):
        module.reset_parameters()
        _set_biases(model, [each for each in module.parameters() if not getattr(each, "_is_hf_initialized", False)])


def _set_biases(model: LanguageModel, drawn: list[nn.Parameter]) -> None:
    """Set the biases of gates among `drawn` as the configuration says, and no others."""
    ids = {id(each) for each in drawn}
    others = [(each, each.clone()) for each in model.layers.parameters() if id(each) not in ids]
    model.set_biases()
    for parameter, before in others:
        parameter.copy_(before)
