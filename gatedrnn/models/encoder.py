"""Embedding and a stack of recurrent layers of any cell over whole sentences: what an encoder is.

Dimensions: T time, B batch, E embedding, H hidden of the last layer, in both directions.
"""

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor, nn

from gatedrnn.cells import State, Trace
from gatedrnn.layers import EmbeddingDropout, LockedDropout, Recurrent

WIDE = 0.5
"""Standard deviation that embeddings begin with: of ±0.1, as in language models, attention finds its words thousands of steps
later, or never (docs/decisions.md)."""


@final
class Encoder(nn.Module):
    """Reads ids [T, B].

    Args:
        config: a section with embedding_size, cell, options, gates, hidden_sizes and dropouts.
        vocabulary_size: V.
        directions: of each layer, 1 or 2.
    """

    def __init__(self, config: Any, vocabulary_size: int, directions: Sequence[int], backend: str = "auto") -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_size)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.input_dropout = LockedDropout(config.input_dropout)
        self.hidden_dropout = LockedDropout(config.hidden_dropout)
        outputs = [size * count for size, count in zip(config.hidden_sizes, directions, strict=True)]
        shared: dict[str, Any] = {"gates": config.gates, "weight_dropout": config.weight_dropout, "backend": backend}
        sizes = zip([config.embedding_size, *outputs], config.hidden_sizes, directions, strict=False)
        self.layers = nn.ModuleList(
            Recurrent(config.cell, before, size, bidirectional=count == 2, **shared, **config.options)
            for before, size, count in sizes
        )
        self.output_size = outputs[-1]
        nn.init.normal_(self.embedding.weight, std=WIDE)

    def forward(
        self, tokens_TB: Tensor, lengths_B: Tensor | None = None, return_gates: bool = False
    ) -> tuple[Tensor, list[State], list[Trace]]:
        """Output [T, B, H], final states by layer, each [directions, B, ·], and traces by layer and direction if asked for."""
        embedded = self.embedding_dropout(self.embedding(tokens_TB), tokens_TB, self.embedding.num_embeddings)
        hidden = self.input_dropout(embedded)
        finals: list[State] = []
        traces: list[Trace] = []
        for index, layer in enumerate(self.layers):
            hidden = self.hidden_dropout(hidden) if index else hidden
            hidden, state, *found = layer(hidden, lengths=lengths_B, return_gates=return_gates)
            finals.append(state if isinstance(state, tuple) else (state,))
            traces += found[0] if found else []
        return hidden, finals, traces
