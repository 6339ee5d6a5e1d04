"""A recurrent language model: embedding, a stack of layers of any cell, decoder.

Dimensions: T time, B batch, V vocabulary, E embedding, H hidden.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from gatedrnn.cells import State, Trace
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import register_namedtuple
from gatedrnn.layers import EmbeddingDropout, LockedDropout, Recurrent
from gatedrnn.models.config import LanguageModelConfig, required
from gatedrnn.models.loss import IGNORED, check_targets, chunked_cross_entropy, whole_numbers
from gatedrnn.models.saving import PretrainedModel
from gatedrnn.sequence.modes import transformed

States = list[State]


class LanguageModelOutput(NamedTuple):
    """The output of `LanguageModel.forward`.

    Args:
        logits: next-token scores [T, B, V]; None with targets, where they are never held at once.
        loss: mean cross-entropy in nats, None without targets.
        states: final states by layer, each state [1, B, H]; pass them on to carry context over windows.
        gates: traces by layer if asked for, {gate name: [T, B, N]}, else None.
        hidden: the last layer's output [T, B, H]; with skip connections the sum of all layers' outputs.
        dropped: the same after output dropout, what the decoder reads.
    """

    logits: Tensor | None
    loss: Tensor | None
    states: States
    gates: list[Trace] | None
    hidden: Tensor
    dropped: Tensor


register_namedtuple(LanguageModelOutput, serialized_type_name="gatedrnn.LanguageModelOutput")


def draw_weights(module: nn.Embedding | nn.Linear) -> None:
    """Draw an embedding's or a decoder's weights within ±0.1; the bias is 0."""
    nn.init.uniform_(module.weight, -0.1, 0.1)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


@final
class LanguageModel(PretrainedModel):
    """Next-token model over ids [T, B].

    Equations: the architecture of Merity, Keskar & Socher 2018 (AWD-LSTM) around any cell. Departs: none.
    Args: config: with its vocabulary size.
    Raises: ArgumentError: the vocabulary size is missing, or the cell refuses an option.
    """

    kind = LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, backend: str = "auto") -> None:
        super().__init__()
        self.config, size = config, required(config, "vocabulary_size")
        self.embedding = nn.Embedding(size, config.embedding_size)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.input_dropout = LockedDropout(config.input_dropout)
        self.hidden_dropout = LockedDropout(config.hidden_dropout)
        self.output_dropout = LockedDropout(config.output_dropout)
        widths = [config.embedding_size, *config.hidden_sizes]
        shared: dict[str, Any] = {"gates": config.gates, "weight_dropout": config.weight_dropout, "backend": backend}
        self.layers = nn.ModuleList(
            Recurrent(config.cell, before, after, **shared, **config.options)
            for before, after in zip(widths, config.hidden_sizes, strict=False)
        )
        self.set_biases()
        self.decoder = nn.Linear(config.hidden_sizes[-1], size)
        draw_weights(self.embedding)
        if config.tied:
            nn.init.zeros_(self.decoder.bias)
            self.tie_weights()
        else:
            draw_weights(self.decoder)

    @torch.no_grad()
    def set_biases(self) -> None:
        """Set the biases of gates as the configuration says.

        Equations: forget gates, Jozefowicz, Zaremba & Sutskever 2015. Master gates, no source: f̃ = cumax rises early and
            ĩ = 1 − cumax falls late, as a forget gate's bias of 1 keeps a cell's state.
        """
        layer: Any
        for layer in self.layers:
            rows, names = [gate.rows for gate in layer.spec.gates], [gate.name for gate in layer.spec.gates]
            biases = dict(zip(names, layer.bias_ih_l0.split(rows), strict=True))
            if self.config.forget_bias is not None:
                biases["forget_gate"].fill_(self.config.forget_bias)
                layer.bias_hh_l0.split(rows)[names.index("forget_gate")].fill_(0.0)
            if self.config.master_bias is not None:
                for name, end in (
                    ("master_input", self.config.master_bias),
                    ("master_forget", -self.config.master_bias),
                ):
                    biases[name] += torch.linspace(0, end, len(biases[name]))

    @property
    def shared(self) -> dict[str, str]:
        """A tied decoder's weight is the embedding's."""
        return {"decoder.weight": "embedding.weight"} if self.config.tied else {}

    def forward(
        self,
        tokens: Tensor,
        states: States | None = None,
        *,
        targets: Tensor | None = None,
        lengths: Tensor | list[int] | None = None,
        return_gates: bool | Collection[str] = False,
        divisor: float | None = None,
        adversarial_softmax: float = 0.0,
    ) -> LanguageModelOutput:
        """Compute the scores of every next token, or the loss of the targets.

        Args:
            tokens: ids [T, B], of any integer type, in 0…V − 1.
            states: states of an earlier output, None for zeros.
            targets: ids [T, B] to be predicted, −100 where nothing is; with them the output has `loss`, without them `logits`.
            lengths: number of valid tokens in each column [B], None for all.
            return_gates: also return the trace of every layer, of all gates or of the named ones.
            divisor: what the sum of the losses is divided by; None for the number of targets.
            adversarial_softmax: α of AdvSoft (Wang, Gong & Liu 2019), for training: in the loss, the logit of each target is
                lowered by α times the lengths of its row of the decoder and of `dropped`; 0 for the plain cross-entropy.

        Raises: ArgumentError: not [T, B] integers, an id out of range (checked on CPU), states that do not fit, or a negative α.
        """
        hidden, finals, traces = self._hidden(tokens, states, lengths, False if return_gates is None else return_gates)
        dropped, gates = self.output_dropout(hidden), traces if return_gates else None
        if targets is None:
            return LanguageModelOutput(self.decoder(dropped), None, finals, gates, hidden, dropped)
        targets = self._ids("targets", targets)
        check_targets("LanguageModel.targets", targets, tokens, "tokens")
        scored = dropped.flatten(0, 1), self.decoder.weight, self.decoder.bias, targets.flatten()
        loss = chunked_cross_entropy(*scored, divisor, adversarial_softmax)
        return LanguageModelOutput(None, loss, finals, gates, hidden, dropped)

    def advance(self, tokens: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """What the decoder reads [T, B, H], and the final states: as `forward`, without the decoder."""
        hidden, finals, _ = self._hidden(tokens, states)
        return self.output_dropout(hidden), finals

    def gates(self, tokens: Tensor, states: States | None = None) -> tuple[States, list[Trace]]:
        """The final states and every layer's gates, {gate name: [T, B, N]}: as `forward`, without the decoder."""
        return self._hidden(tokens, states, gates=True)[1:]

    def trace(
        self,
        tokens: Tensor,
        lengths: Tensor | list[int] | None,
        layers: Collection[int],
        gates: Collection[str] | bool = True,
    ) -> list[Trace]:
        """The gates named (or all) of `layers` (from 1), lowest first, {gate name: [T, B, N]} each; nothing above runs.

        Raises: ArgumentError: a layer does not exist, or none is named; else as `forward`.
        """
        wrong = [layer for layer in layers if not 1 <= layer <= len(self.layers)]
        if wrong or not layers:
            rule = f"must lie in 1…{len(self.layers)}"
            raise ArgumentError("LanguageModel.layers", rule, wrong or "none", "Choose layers of the model")
        return self._hidden(tokens, None, lengths, gates, layers)[2]

    def _hidden(
        self,
        tokens: Tensor,
        states: States | None,
        lengths: Tensor | list[int] | None = None,
        gates: Collection[str] | bool = False,
        layers: Collection[int] = (),
    ) -> tuple[Tensor, States, list[Trace]]:
        """Output of the highest of `layers` (from 1; empty for all), final states up to it, and traces of these layers."""
        if states is not None and len(states) != len(self.layers):
            rule = f"must have {len(self.layers)} layers"
            raise ArgumentError("LanguageModel.states", rule, len(states), "Pass on output.states")
        tokens = self._ids("tokens", tokens)
        embedded = self.embedding_dropout(self.embedding(tokens), tokens, self.embedding.num_embeddings)
        hidden = self.input_dropout(embedded)
        finals: States = []
        traces: list[Trace] = []
        outputs: list[Tensor] = []
        depth = max(layers) if layers else len(self.layers)
        for number, layer in enumerate(self.layers[:depth], 1):  # type: ignore[arg-type]
            if number > 1:
                hidden = self.hidden_dropout(hidden)
            before = None if states is None else states[number - 1]
            wanted = gates if not layers or number in layers else False
            hidden, state, *found = layer(hidden, before, lengths=lengths, return_gates=wanted)
            finals.append(state if isinstance(state, tuple) else (state,))
            traces += found[0] if found else []
            outputs = [*outputs, hidden] if self.config.skip_connections else [hidden]
        return self.combined(outputs), finals, traces

    def combined(self, outputs: Sequence[Tensor]) -> Tensor:
        """What output dropout and the decoder read of the layers' outputs [T, B, H], lowest first."""
        return torch.stack(tuple(outputs)).sum(0) if self.config.skip_connections else outputs[-1]

    def _ids(self, name: str, ids: Tensor) -> Tensor:
        """`ids` as int64; their range is checked where that takes no wait for a device, and targets may be −100."""
        owner = f"LanguageModel.{name}"
        ids = whole_numbers(owner, ids, "[T, B]", "Time comes first")
        if type(ids) is not Tensor or ids.device.type != "cpu" or torch.compiler.is_compiling() or transformed():
            return ids
        size = self.embedding.num_embeddings
        wrong = ids[((ids < 0) & (ids != IGNORED if name == "targets" else True)) | (ids >= size)]
        if wrong.numel():
            advice = "Encode with the model's vocabulary"
            raise ArgumentError(owner, f"ids must lie in 0…{size - 1}", int(wrong[0]), advice)
        return ids


torch.serialization.add_safe_globals([LanguageModelConfig])  # a checkpoint's hyperparameters, under weights_only=True
