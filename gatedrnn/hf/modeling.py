"""`LanguageModel` as transformers calls it: batches first, padding anywhere, a state for a cache.

Dimensions: B batch, T time, V tokens without the padding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file

from gatedrnn.hf.configuration import GatedRNNConfig
from gatedrnn.models import LanguageModel
from gatedrnn.models.language_model import States
from gatedrnn.models.saving import put_weights, read_weights, stored_tensors
from gatedrnn.weights.compressed import compressed

_NEVER = -1e9  # the padding's logit: no probability, and no infinity that another logit could be subtracted from
_HUB = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "subfolder")


class RecurrentState:
    """The state after what was read, which `generate` carries: by layer, each state [1, B, H]."""

    def __init__(self, states: States) -> None:
        self.states = states

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the states of other rows, those that a beam search goes on from."""
        self.states = [
            tuple(state.index_select(1, beam_idx.to(state.device)) for state in layer) for layer in self.states
        ]


@dataclass
class GatedRNNOutput(ModelOutput):
    """What a forward gives.

    Args:
        loss: mean cross-entropy of labels in nats, each predicted from those before it; None without labels.
        logits: next-token scores [B, T, V + 1], the padding's without any probability.
        cache_params: the state after the last token.
        hidden_states: the last layer's output [B, T, H] as a tuple of one, if asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache_params: RecurrentState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class GatedRNNForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel`; `model` is it. A text begins with `<eos>`, as the tokenizer writes it."""

    config_class = GatedRNNConfig
    base_model_prefix = "model"
    _is_stateful = True
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.decoder.weight": "model.embedding.weight"}
    _no_split_modules: ClassVar[list[str]] = ["Recurrent"]

    def __init__(self, config: GatedRNNConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.built())
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the model did."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Another embedding."""
        self.model.embedding = value  # type: ignore[assignment]

    def get_output_embeddings(self) -> nn.Module:
        """The decoder."""
        return self.model.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Another decoder."""
        self.model.decoder = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache_params: RecurrentState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> GatedRNNOutput | tuple[Any, ...]:
        """Score every next token.

        Args:
            input_ids: [B, T], the padding's id wherever nothing stands.
            attention_mask: [B, T] or with what was read before, 0 where nothing stands; its last T columns are read.
            cache_params: what an earlier output gave.
            labels: [B, T], −100 where nothing counts; the token at t + 1 is predicted at t.
            logits_to_keep: only the last so many places' logits; 0 for all.
        """
        T, rows = input_ids.shape[1], self.model.embedding.num_embeddings
        ids = input_ids.masked_fill(input_ids >= rows, self.config.eos_token_id)
        there = None if attention_mask is None else attention_mask[:, -T:].bool()
        if there is None or bool(there.all()):
            logits, hidden, states = self._read(ids, cache_params, None)
        else:
            order = torch.argsort(~there, dim=1, stable=True)  # what stands there comes first
            logits, hidden, states = self._read(ids.gather(1, order), cache_params, there.sum(1))
            back = torch.argsort(order, dim=1)[:, :, None]
            logits, hidden = (found.gather(1, back.expand_as(found)) for found in (logits, hidden))
            if labels is not None:  # what stands after padding is predicted from nothing
                labels = labels.masked_fill(~there.roll(1, 1), -100)
        logits = F.pad(logits[:, -logits_to_keep:], (0, max(0, self.config.vocab_size - rows)), value=_NEVER)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        cache = None if use_cache is False else RecurrentState(states)
        found = GatedRNNOutput(loss, logits, cache, (hidden,) if output_hidden_states else None)
        return found if return_dict is not False else found.to_tuple()

    def _read(
        self, ids: Tensor, before: RecurrentState | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, States]:
        """Logits [B, T, V], the last layer's output [B, T, H], and the states after `lengths` tokens of each row."""
        given = None if before is None else before.states
        at_least_one = None if lengths is None else lengths.clamp(min=1).cpu()
        found = self.model(ids.t().contiguous(), given, lengths=at_least_one)
        states = found.states
        if lengths is not None and bool((lengths == 0).any()):  # of such rows nothing is read
            nothing = (lengths == 0)[None, :, None]
            earlier = given or [tuple(torch.zeros_like(state) for state in layer) for layer in states]
            states = [
                tuple(torch.where(nothing, old, new) for old, new in zip(*layers, strict=True))
                for layers in zip(earlier, states, strict=True)
            ]
        return found.logits.transpose(0, 1), found.hidden.transpose(0, 1), states

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers does; compressed weights in their small forms."""
        tensors = self.model.own_state_dict()
        self.config.model["vocabulary_size"] = self.model.embedding.num_embeddings  # another one after resizing
        self.config.compressed = [name for name, value in tensors.items() if compressed(value)]
        if self.config.compressed:
            kwargs["state_dict"] = {f"model.{name}": value for name, value in stored_tensors(tensors).items()}
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers does; a model with compressed weights is read by our own reader, and stays on the CPU."""
        name, config = pretrained_model_name_or_path, kwargs.get("config")
        if not isinstance(config, GatedRNNConfig):
            config = GatedRNNConfig.from_pretrained(name, **{key: kwargs[key] for key in _HUB if key in kwargs})
        if not config.compressed:
            return super().from_pretrained(name, *args, **kwargs)
        file = cached_file(name, SAFE_WEIGHTS_NAME, **{key: kwargs[key] for key in _HUB if key in kwargs})
        model = cls(config)
        put_weights(model.model, read_weights(Path(str(file)), model.model, "model."))
        return model.eval()
