"""The average value of every gate at every word of a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gatedrnn.data import EOS, Vocabulary
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating


@dataclass(frozen=True)
class WordGates:
    """One sentence.

    Args:
        words: tokens, as written.
        layers: for each layer the mean over units of each gate at each word, {gate: [words]}.
        distances: for each layer the distance of each word; none without master gates.
    """

    words: list[str]
    layers: list[dict[str, list[float]]]
    distances: list[list[float]]


def gates_by_word(
    model: LanguageModel, vocabulary: Vocabulary, sentences: Sequence[str], mapping: str = "number"
) -> Iterator[WordGates]:
    """Read each sentence from a fresh state after `<eos>`.

    Args: mapping: how words are looked up, as in `Vocabulary.encode_foreign`; of no use at other levels.
    """
    device = model.embedding.weight.device
    for sentence in sentences:
        tokens = vocabulary.tokens(sentence)
        ids = vocabulary.encode_foreign(tokens, mapping) if vocabulary.level == "word" else vocabulary.encode(tokens)
        inputs = torch.tensor([vocabulary.ids[EOS], *ids], device=device)[:, None]
        with torch.no_grad(), evaluating(model):
            traces = model.trace(inputs, None, range(1, len(model.layers) + 1))
        means = [{name: gate[1:, 0].double().mean(-1) for name, gate in trace.items()} for trace in traces]
        layers = [{name: finite(f"gates.{name}", mean).tolist() for name, mean in layer.items()} for layer in means]
        masters = [trace["master_forget"][1:, 0].double() for trace in traces if "master_forget" in trace]
        yield WordGates(tokens, layers, [syntactic_distance(gate).tolist() for gate in masters])
