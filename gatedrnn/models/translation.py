"""A translation model: encoder, decoder of any cell, attention between them.

Attention stands above the decoder's first layer, and its result beside that layer's output goes into the second layer, and beside
the last layer's into the output. The first layer does not read what attention gave, so in training each layer runs over the whole
translation at once, in the kernels.
Dimensions: T steps of a translation, S of its source, B batch, E embedding, H units of a layer, M of the encoder's output, V
tokens.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.cells import State, Trace
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import EmbeddingDropout, LockedDropout, Recurrent
from gatedrnn.models.config import TranslationConfig, required
from gatedrnn.models.encoder import WIDE, Encoder
from gatedrnn.models.loss import IGNORED, check_targets, chunked_cross_entropy, whole_numbers
from gatedrnn.models.saving import PretrainedModel


@dataclass
class Source:
    """What the decoder knows of a batch of sources, and where it is.

    Args:
        memory_BSM: the encoder's output.
        keys_BSH: what attention compares with.
        beyond_BS: True beyond a source's length.
        states: of each layer of the decoder, [1, B, H] each.
        traces: of the encoder's layers and directions, if asked for.
    """

    memory_BSM: Tensor
    keys_BSH: Tensor
    beyond_BS: Tensor
    states: list[State]
    traces: list[Trace] = field(default_factory=list)

    def take(self, rows_B: Tensor) -> "Source":
        """These rows of the batch, as often as they are named."""
        memory, keys, beyond = (
            each.index_select(0, rows_B) for each in (self.memory_BSM, self.keys_BSH, self.beyond_BS)
        )
        return Source(memory, keys, beyond, [tuple(s.index_select(1, rows_B) for s in layer) for layer in self.states])


class Decoded(NamedTuple):
    """Of the decoder: scores [T, B, V], attention [T, B, S], the source with the states after the last step, traces by layer."""

    scores: Tensor
    attention: Tensor
    source: Source
    traces: list[Trace]


class Losses(NamedTuple):
    """Of a batch: the cross-entropy in nats, and what smoothed labels (Szegedy et al. 2016, sec. 7) add to it in training."""

    nats: Tensor
    smoothing: Tensor


@final
class TranslationModel(PretrainedModel):
    """Scores of each token of a translation.

    Equations: Luong, Pham & Manning 2015, eq. 5 to 8 ("general" attention, no input feeding). Departs: scores are divided by √H;
        attention stands above the decoder's first layer, as in Wu et al. 2016 (GNMT); the second layer and the output read
        [h; context].
    Args: config: with the sizes of both vocabularies.
    Raises: ArgumentError: a size is missing, or the cell refuses an option.
    """

    kind = TranslationConfig

    def __init__(self, config: TranslationConfig, backend: str = "auto") -> None:
        super().__init__()
        source_size, target_size = required(config, "vocabulary_size"), required(config, "target_size")
        if config.shared_embedding and source_size != target_size:
            rule, got = "needs one vocabulary for both sides", f"{source_size} and {target_size} tokens"
            raise ArgumentError("model.shared_embedding", rule, got, "Set data.joint: true")
        self.config = config
        self.encoder = Encoder(config, source_size, [2, *[1] * (len(config.hidden_sizes) - 1)], backend)
        E, M, first = config.embedding_size, self.encoder.output_size, config.decoder_sizes[0]
        self.embedding = nn.Embedding(target_size, E)
        nn.init.normal_(self.embedding.weight, std=WIDE)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.input_dropout = LockedDropout(config.input_dropout)
        self.hidden_dropout = LockedDropout(config.hidden_dropout)
        shared: dict[str, Any] = {"gates": config.gates, "weight_dropout": config.weight_dropout, "backend": backend}
        above = [size + M if k == 0 else size for k, size in enumerate(config.decoder_sizes)]
        self.layers = nn.ModuleList(
            Recurrent(config.cell, before, size, **shared, **config.options)
            for before, size in zip([E, *above], config.decoder_sizes, strict=False)
        )
        self.bridges = nn.ModuleList(nn.Linear(M, size) for size in config.decoder_sizes)
        self.keys = nn.Linear(M, first, bias=False)
        last = config.decoder_sizes[-1] + M
        self.output = nn.Linear(last, E)
        self.output_dropout = nn.Dropout(config.output_dropout)
        self.decoder = nn.Linear(E, target_size)
        nn.init.zeros_(self.decoder.bias)
        self.tie_weights()

    @property
    def shared(self) -> dict[str, str]:
        """The embedding of the target may be the source's, and the scores' weights may be the embedding's."""
        one = {"embedding.weight": "encoder.embedding.weight"} if self.config.shared_embedding else {}
        return one | ({"decoder.weight": one.get("embedding.weight", "embedding.weight")} if self.config.tied else {})

    def forward(
        self, source_TB: Tensor, source_B: Tensor, inputs_TB: Tensor, target_B: Tensor | None = None,
        targets_TB: Tensor | None = None, divisor: float | None = None,
    ) -> Any:  # fmt: skip
        """Scores [T, B, V] of the token after each of a translation's; with targets the loss, see `Losses`.

        Args:
            source_TB, source_B: ids and lengths.
            inputs_TB: `<eos>` and all but the last token; target_B: their lengths.
            targets_TB: ids, −100 where nothing is predicted; divisor: of the losses' sum, None for their number.

        Raises: ArgumentError: the targets are no integers, or not one for each of the inputs and beside them.
        """
        owner = "TranslationModel.targets_TB"
        if targets_TB is not None:
            targets_TB = whole_numbers(owner, targets_TB, "[T, B]", "Time comes first")
            check_targets(owner, targets_TB, inputs_TB, "inputs")
        source = self.encode(source_TB, source_B)
        if targets_TB is None:
            return self.decode(source, inputs_TB, target_B).scores
        top_NE = self._top(source, inputs_TB, target_B)[0].flatten(0, 1)
        weight, bias, targets_N = self.decoder.weight, self.decoder.bias, targets_TB.flatten()
        nats = chunked_cross_entropy(top_NE, weight, bias, targets_N, divisor)
        live_N = targets_N != IGNORED
        if not self.config.label_smoothing:
            return Losses(nats, torch.zeros_like(nats))
        even = F.embedding(targets_N.clamp_min(0), weight) - weight.mean(0)  # log Z falls out of the difference
        above_N = (top_NE * even).sum(-1) + bias[targets_N.clamp_min(0)] - bias.mean()
        total = torch.where(live_N, above_N, 0.0).sum() / (live_N.sum() if divisor is None else divisor)
        return Losses(nats, self.config.label_smoothing * total)

    def encode(self, source_TB: Tensor, source_B: Tensor, return_gates: bool = False) -> Source:
        """What the decoder starts with: the encoder's output, and h as its mean through a layer; other states are 0."""
        memory_SBM, _, traces = self.encoder(source_TB, source_B, return_gates)
        beyond_BS = torch.arange(source_TB.shape[0], device=source_TB.device) >= source_B[:, None].to(source_TB.device)
        mean_BM = memory_SBM.sum(0) / source_B[:, None].to(memory_SBM)
        states = []
        for bridge, layer in zip(self.bridges, self.layers, strict=True):
            h = torch.tanh(bridge(mean_BM))[None]
            spec: Any = layer.spec
            states.append((h, *(torch.zeros_like(h) for _ in spec.states[1:])))
        memory_BSM = memory_SBM.transpose(0, 1)
        return Source(memory_BSM, self.keys(memory_BSM), beyond_BS, states, traces)

    def decode(
        self, source: Source, inputs_TB: Tensor, target_B: Tensor | None = None, return_gates: bool = False
    ) -> Decoded:
        """Scores after each of these tokens, with the states as they are; the gates too if asked for."""
        top, attention, after, traces = self._top(source, inputs_TB, target_B, return_gates)
        return Decoded(self.decoder(top), attention, after, traces)

    def _top(
        self, source: Source, inputs_TB: Tensor, target_B: Tensor | None, return_gates: bool = False
    ) -> tuple[Tensor, Tensor, Source, list[Trace]]:
        """What scores are computed of [T, B, E], attention [T, B, S], the source after the last step, and traces."""
        embedded = self.embedding_dropout(self.embedding(inputs_TB), inputs_TB, self.embedding.num_embeddings)
        hidden, context_TBM, attention_TBS, finals, traces = self.input_dropout(embedded), None, None, [], []
        for k, layer in enumerate(self.layers):
            hidden = self.hidden_dropout(hidden) if k else hidden
            hidden, after, *found = layer(hidden, source.states[k], lengths=target_B, return_gates=return_gates)
            traces += found[0] if found else []
            finals.append(after if isinstance(after, tuple) else (after,))
            if k == 0:
                context_TBM, attention_TBS = self._attend(hidden, source)
            if k == 0 or k == len(self.layers) - 1:
                hidden = torch.cat([hidden, context_TBM], -1)  # type: ignore[list-item]
        assert attention_TBS is not None
        top = self.output_dropout(torch.tanh(self.output(hidden)))
        return top, attention_TBS, replace(source, states=finals), traces

    def _attend(self, hidden_TBH: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Context [T, B, M] and attention [T, B, S]."""
        queries_BTH = hidden_TBH.transpose(0, 1)
        likeness_BTS = queries_BTH @ source.keys_BSH.transpose(1, 2) / math.sqrt(queries_BTH.shape[-1])
        weights_BTS = F.softmax(likeness_BTS.masked_fill(source.beyond_BS[:, None], -math.inf), -1)
        return (weights_BTS @ source.memory_BSM).transpose(0, 1), weights_BTS.transpose(0, 1)


torch.serialization.add_safe_globals([TranslationConfig])  # a checkpoint's hyperparameters, under weights_only=True
