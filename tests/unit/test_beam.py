"""When a search for a translation ends."""

import pytest
import torch

from gatedrnn.models import TranslationConfig, TranslationModel
from gatedrnn.models.beam import Beam, translate


@pytest.mark.parametrize(("alpha", "size", "length"), [(5.0, 1, 6), (5.0, 2, 6), (5.0, 3, 6), (0.0, 2, 0), (0.0, 3, 0)])
def test_a_search_goes_on_while_a_longer_translation_would_be_better(alpha, size, length):
    sizes = {"vocabulary_size": 4, "target_size": 4, "embedding_size": 4, "hidden_sizes": (4,), "decoder_sizes": (4,)}
    model = TranslationModel(TranslationConfig(**sizes, tied=False))
    with torch.no_grad():  # every step alike: <unk>, the end, and two words
        model.decoder.weight.zero_()
        model.decoder.bias.copy_(torch.tensor([0.01, 0.3, 0.59, 0.1]).log())
    source, lengths = torch.tensor([[2], [3], [1]]), torch.tensor([3])
    ((best,),) = translate(model, source, lengths, Beam(size, alpha, ratio=1.0, extra=3))
    assert best.ids == [2] * length
