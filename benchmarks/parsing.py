"""How fast a treebank is parsed: batched reading against one sentence at a time on the reference, same distances.

    python benchmarks/parsing.py --treebank ../shared/data/gum/test.trees

The model has the published language model's size (embedding 400, layers 1150, 1150, 400) and random weights, on which no time
depends; `--run RUN` takes a trained model, on whose gates the distances' error may.
"""

import argparse
import time
from pathlib import Path

import torch

from gatedrnn.data import EOS, UNK, Vocabulary, read_treebank
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.parsing import evaluate_parsing, induced_trees, read_gold
from gatedrnn.training.run import load_run
from gatedrnn.trees import Gold, gold_tree

WORDS, LAYER = 10_000, 2
"""Size of the vocabulary, as PTB's, and the layer read."""


@torch.no_grad()
def _one(model: LanguageModel, ids: list[int], eos: int, layer: int) -> list[float]:
    """Distances of one sentence, from the model as anyone would call it."""
    gates = model(torch.tensor([eos, *ids])[:, None], return_gates=True).gates
    assert gates is not None
    return syntactic_distance(gates[layer - 1]["master_forget"][1:, 0]).tolist()


def _model_and_vocabulary(options: argparse.Namespace, gold: list[Gold]) -> tuple[LanguageModel, Vocabulary]:
    """Of `--run`, or of the sizes given, with random weights and the treebank's words."""
    if options.run:
        run = load_run(options.run)
        return run.model.eval(), run.vocabulary
    torch.manual_seed(1)
    embedding, *hidden = options.sizes
    config = LanguageModelConfig(
        WORDS, embedding_size=embedding, hidden_sizes=tuple(hidden), tied=embedding == hidden[-1]
    )
    words = sorted({word for tree in gold for word in tree.words})[: WORDS - 2]
    names = [UNK, EOS, *words, *(f"#{k}" for k in range(WORDS - 2 - len(words)))]
    return LanguageModel(config).eval(), Vocabulary(names)


def main() -> None:
    """Time both and print the ratio a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treebank", required=True, type=Path)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[400, 1150, 1150, 400], help="embedding, then each layer"
    )
    parser.add_argument("--run", type=Path, help="a trained model instead; words as they are written")
    parser.add_argument("--alone", type=int, default=40, help="sentences read one at a time")
    options = parser.parse_args()

    began = time.perf_counter()
    gold = [gold_tree(tree) for tree in read_treebank(options.treebank)]
    made = time.perf_counter() - began
    model, vocabulary = _model_and_vocabulary(options, gold)
    layer = min(LAYER, len(model.layers))
    read_gold(model, vocabulary, gold[:16], [layer], mapping="exact")  # kernels are compiled once an installation
    read = time.perf_counter()
    readings = read_gold(model, vocabulary, gold, [layer], mapping="exact")
    parsed = time.perf_counter()
    evaluate_parsing(gold, induced_trees(readings, layer)["unbiased"])
    done = time.perf_counter()
    tokens = sum(len(tree) + 1 for tree in gold)
    print(f"{len(gold):,} sentences, {tokens:,} tokens: {made + done - read:.1f} s")
    print(f"  trees read {made:.1f} s, distances {parsed - read:.1f} s, trees built and scored {done - parsed:.1f} s")

    alone = [k for k, tree in enumerate(gold) if len(tree)][:: max(1, len(gold) // options.alone)]
    slow = LanguageModel(model.config, backend="reference").eval()
    slow.load_state_dict(model.state_dict())
    began = time.perf_counter()
    found = {k: _one(slow, vocabulary.encode(gold[k].words), vocabulary.ids[EOS], layer) for k in alone}
    one = (time.perf_counter() - began) / len(alone)
    differences = [abs(a - b) for k in alone for a, b in zip(found[k], readings[k].distances[layer], strict=True)]
    batched = (parsed - read) / len(gold)
    mean = sum(len(gold[k]) for k in alone) / len(alone)
    print(
        f"one at a time on the reference: {1e3 * one:.1f} ms each ({len(alone)} of them, {mean:.1f} words in the mean)"
    )
    print(
        f"batched: {1e3 * batched:.2f} ms each, {one / batched:.1f} times faster; distances differ by {max(differences):.1e}"
    )


if __name__ == "__main__":
    main()
