"""How fast compressed weights are read: the recurrent layers of a language model, in every form, side by side in one run.

    python benchmarks/compressed.py                      # streaming: one token of one sequence at a time
    python benchmarks/compressed.py --batch 64

The model has the published language model's size (embedding 400, layers 1150, 1150, 400) and random weights. Rounds go through
all forms in turn, and the fastest round of each counts.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.saving import put_weight
from gatedrnn.studies.compression import Scheme, compressed
from gatedrnn.weights.compressed import stored_parts


def _schemes(cell: str, rank: int) -> dict[str, Scheme | None]:
    own: dict[str, Any] = {"options": {"chunk_size": 2}} if cell == "onlstm" else {}
    model = LanguageModel(LanguageModelConfig(2, cell=cell, embedding_size=2, hidden_sizes=(2,), **own))
    gates = tuple(gate.name for layer in model.layers for gate in layer.spec.gates if gate.rows == 2)  # type: ignore[union-attr]
    plain = {name: Scheme(name) for name in ("bf16", "int8", "int4")}
    low = {
        f"rank {rank}, every gate of all units": Scheme("svd", gates, rank=rank),
        f"rank {rank}, i and f": Scheme("svd", rank=rank),
    }
    return {"float32": None, **plain, "binary, every gate of all units": Scheme("binary", gates), **low}


def _layers(model: LanguageModel, batch: int) -> tuple[Callable[[], None], int]:
    """A step of the recurrent layers, each from where the last one ended, and their weights' size in bytes."""
    states: list[Any] = [None] * len(model.layers)
    x_TBD = torch.randn(1, batch, model.config.embedding_size, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        hidden: Tensor = x_TBD
        for k, layer in enumerate(model.layers):
            hidden, states[k] = layer(hidden, states[k])

    weights = [part for layer in model.layers for value in layer.state_dict().values() for part in stored_parts(value)]
    return step, sum(part.nbytes for part in weights)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", default="lstm")
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 1150, 1150, 400], help="embedding, then layers")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    embedding, *hidden = options.sizes
    config = LanguageModelConfig(
        10, cell=options.cell, embedding_size=embedding, hidden_sizes=tuple(hidden), tied=embedding == hidden[-1]
    )
    torch.manual_seed(1)
    dense, steps = LanguageModel(config).eval(), {}
    for name, scheme in _schemes(options.cell, options.rank).items():
        model = LanguageModel(config).eval()
        model.load_state_dict(dense.state_dict())
        for weight, value in compressed(dense, scheme).items() if scheme else ():
            put_weight(model, weight, value)
        steps[name] = _layers(model, options.batch)
    fastest = dict.fromkeys(steps, float("inf"))
    count = 50 if options.batch == 1 else 10
    with torch.no_grad():
        for _ in range(options.rounds):
            for name, (step, _) in steps.items():
                step()
                began = time.perf_counter()
                for _ in range(count):
                    step()
                fastest[name] = min(fastest[name], (time.perf_counter() - began) / count)
    print(f"{options.cell}, {options.sizes}, batch {options.batch}, {torch.get_num_threads()} threads")
    print("| weights | bytes | of float32 | µs a step | times float32's speed |\n|---|--:|--:|--:|--:|")
    whole = steps["float32"][1]
    for name, (_, size) in steps.items():
        ratio = fastest["float32"] / fastest[name]
        print(f"| {name} | {size:,} | {100 * size / whole:.1f} % | {1e6 * fastest[name]:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
