"""`LanguageModel` as transformers calls it: batches first, padding anywhere, a state for a cache.

Dimensions: B batch, T time, V tokens without the padding.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file

from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.hf.configuration import AUTO_MAP, GatedRNNConfig
from gatedrnn.hf.state import RecurrentState, given_state, unread
from gatedrnn.layers import Recurrent
from gatedrnn.models import LanguageModel
from gatedrnn.models.language_model import States, draw_weights
from gatedrnn.models.own_cells import check_equations, equations
from gatedrnn.models.saving import put_weights, read_weights, stored_tensors
from gatedrnn.weights.compressed import compressed

_BELOW = 50  # the padding's logit is so far below the smallest: a probability below 1e-21, and a finite one
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_HUB = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "subfolder")


@dataclass
class GatedRNNOutput(ModelOutput):
    """What a forward gives.

    Args:
        loss: mean cross-entropy of labels in nats, each predicted from those before it; None without labels.
        logits: next-token scores [B, T, V + 1], the padding's without any probability.
        cache: the state after the last token; `cache_params` and `past_key_values` are names that transformers had before 5.24.
        hidden_states: the last layer's output [B, T, H] as a tuple of one, if asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: RecurrentState | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    @property
    def cache_params(self) -> RecurrentState | None:
        """The state."""
        return self.cache

    @property
    def past_key_values(self) -> RecurrentState | None:
        """The state."""
        return self.cache

    def get(self, key: str, default: Any = None) -> Any:
        """An entry; the state by any of its names, as `generate(guidance_scale=…)` asks for it."""
        return super().get(_of_state(key), default)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_of_state(name), value)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(_of_state(key), value)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_of_state(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_of_state(key))


def _of_state(key: Any) -> Any:
    """The key of an output; of the state, the name that transformers has for it now."""
    return "cache" if key in ("past_key_values", "cache_params") else key


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
        for parameter in self.model.parameters():
            if not parameter.is_meta:  # which has been drawn just now
                parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw what a checkpoint lacks, as `LanguageModel` draws its weights.

        transformers marks what it has read by `_is_hf_initialized`, and lets torch.nn.init pass over what is marked.
        """
        if isinstance(module, nn.Embedding | nn.Linear):
            draw_weights(module)
        elif isinstance(module, Recurrent):
            module.reset_parameters()
            drawn = {id(each) for each in module.parameters() if not getattr(each, "_is_hf_initialized", False)}
            others = [(each, each.clone()) for each in self.model.layers.parameters() if id(each) not in drawn]
            self.model.set_biases()  # of all gates, as the configuration says
            for parameter, before in others:  # which stay as they are
                parameter.copy_(before)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing: a saved folder imports the package instead of copying this file."""

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

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """What `forward` is given for the next token: with a state only the tokens that it has not read.

        Raises: ArgumentError: the state has read other tokens, or all; it is not a `RecurrentState`.
        """
        state = given_state(cache, cache_params, past_key_values)
        if state is not None and next_sequence_length != 1:
            next_sequence_length = unread(state, input_ids)
        given = {"attention_mask": attention_mask, **kwargs}
        parent: Any = super()
        found = parent.prepare_inputs_for_generation(input_ids, next_sequence_length, **given)
        return found | {"cache": state}

    def _update_model_kwargs_for_generation(self, outputs: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers does; the new state takes the place of one given by any name."""
        kept = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        if outputs.cache is None:
            return kept
        return {key: value for key, value in kept.items() if _of_state(key) != "cache"} | {
            ALL_CACHE_NAMES[0]: outputs.cache
        }

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: RecurrentState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache_params: RecurrentState | None = None,
        past_key_values: RecurrentState | None = None,
        **kwargs: Any,
    ) -> GatedRNNOutput | tuple[Any, ...]:
        """Score every next token.

        Args:
            input_ids: [B, T], the padding's id wherever nothing stands.
            attention_mask: [B, T] or with what was read before, 0 where nothing stands; its last T columns are read.
            cache: what an earlier output gave.
            labels: [B, T], −100 where nothing counts; the token at t + 1 is predicted at t.
            output_hidden_states, return_dict: as in the configuration, if None.
            logits_to_keep: only the last so many places' logits, 0 for all, or the places [N]; the loss is of all.
            cache_params, past_key_values: other names of `cache`.
            kwargs: `num_items_in_batch` and `shift_labels`, see `_loss`.

        Raises: ArgumentError: no ids, others than integers [B, T], an id that is neither a token's nor the padding's, a mask of
            other rows or fewer columns, another kind of cache, embeddings or attention weights asked for.
        """
        ids = self._ids(input_ids, kwargs)
        state, there = given_state(cache, cache_params, past_key_values), _there(attention_mask, ids)
        if there is None:
            logits, hidden, states = self._read(ids, state, None)
        else:
            order = torch.argsort(~there, dim=1, stable=True)  # what stands there comes first
            logits, hidden, states = self._read(ids.gather(1, order), state, there.sum(1))
            last = there.sum(1, keepdim=True) - 1  # padding has what its row ends with: generation goes on there
            back = torch.minimum(torch.argsort(order, dim=1), last.clamp(min=0))[:, :, None]
            logits, hidden = (found.gather(1, back.expand_as(found)) for found in (logits, hidden))
        logits = self._with_padding(logits)
        loss = None if labels is None else self._loss(logits, labels, there, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        given: Any = input_ids
        read_BT = given if state is None else torch.cat([state.read_BT.to(given.device), given], 1)
        after = None if use_cache is False else RecurrentState(states, read_BT)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        found = GatedRNNOutput(loss, logits[:, kept], after, (hidden,) if wanted else None)
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return found if as_dict else found.to_tuple()

    def _ids(self, input_ids: Tensor | None, others: dict[str, Any]) -> Tensor:
        """The ids [B, T], `<eos>` for the padding. Raises: ArgumentError: there are none, or something cannot be done."""
        owner = "GatedRNNForCausalLM"
        embedded = others.get("inputs_embeds") is not None
        if input_ids is None or embedded:
            got = "inputs_embeds" if embedded else None
            raise ArgumentError(f"{owner}.input_ids", "must be given", got, "Give ids [B, T]")
        if not isinstance(input_ids, Tensor) or input_ids.dtype not in _INTEGERS or input_ids.dim() != 2:
            a_tensor = isinstance(input_ids, Tensor)
            got = f"{input_ids.dtype} {list(input_ids.shape)}" if a_tensor else type(input_ids).__name__
            raise ArgumentError(f"{owner}.input_ids", "must be integers [B, T]", got, "The batch comes first")
        asked = others.get("output_attentions")
        if self.config.output_attentions if asked is None else asked:
            advice = "Ask for the gates: gatedrnn gates"
            raise ArgumentError(f"{owner}.output_attentions", "must be False: there is no attention", True, advice)
        padding = self.config.pad_token_id
        if padding is None or padding < self.model.embedding.num_embeddings:
            return input_ids
        return input_ids.masked_fill(input_ids == padding, self.config.eos_token_id)

    def _with_padding(self, logits: Tensor) -> Tensor:
        """Logits [B, T, V] with those of the padding, which has no row of weights."""
        more = max(0, self.config.vocab_size - logits.shape[-1])
        if not more or not logits.numel():
            return F.pad(logits, (0, more))
        lowest = logits.detach().amin(-1, keepdim=True) - _BELOW
        return torch.cat([logits, lowest.expand(*logits.shape[:-1], more)], -1)

    def _loss(
        self,
        logits: Tensor,
        labels: Tensor,
        there: Tensor | None,
        num_items_in_batch: Any = None,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mean cross-entropy of the labels in nats; what follows padding is predicted from nothing and not scored.

        Args:
            there: [B, T], False where nothing stands; None if all stands there.
            num_items_in_batch: labels of all batches that are accumulated, as Trainer counts them. The mean then counts by
                this batch's share of them.
            shift_labels: labels [B, T] of the places that predict them, instead of `labels`.
        """
        shifted = F.pad(labels[:, 1:], (0, 1), value=-100) if shift_labels is None else shift_labels
        scored = shifted if there is None else shifted.masked_fill(~there.to(shifted.device), -100)
        if num_items_in_batch is not None:
            counts = [(each != -100).sum().clamp(min=1) for each in (scored, shifted)]
            num_items_in_batch = num_items_in_batch * (counts[0] / counts[1])
        given = {"shift_labels": scored, "num_items_in_batch": num_items_in_batch, **kwargs}
        return self.loss_function(logits=logits.contiguous(), labels=labels, vocab_size=logits.shape[-1], **given)

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
        """As transformers does; compressed weights in their small forms. config.json brings the file for `trust_remote_code`."""
        tensors = self.model.own_state_dict()
        self.config.model["vocabulary_size"] = self.model.embedding.num_embeddings  # another one after resizing
        self.config.compressed = [name for name, value in tensors.items() if compressed(value)]
        if self.config.compressed:
            kwargs["max_shard_size"] = sys.maxsize  # our reader takes one file
            kwargs["state_dict"] = {f"model.{name}": value for name, value in stored_tensors(tensors).items()}
        if (found := equations(self.model)) or hasattr(self.config, "equations"):
            self.config.equations = found
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers does; a model with compressed weights is read by our own reader, and stays on the CPU in float32.

        Raises: ArgumentError: another dtype of a model with compressed weights. CheckpointError: there is no embedding.
        """
        name, config = pretrained_model_name_or_path, kwargs.get("config")
        hub = {key: kwargs[key] for key in _HUB if key in kwargs}
        if not isinstance(config, GatedRNNConfig):
            config = GatedRNNConfig.from_pretrained(name, **hub)
        if not config.compressed:
            how: dict[str, Any] = {"use_safetensors": True} | kwargs
            found = super().from_pretrained(name, *args, **how)
            model = found[0] if isinstance(found, tuple) else found
            places = kwargs.get("device_map")
            named = {str(place) for place in (places.values() if isinstance(places, dict) else [places])}
            if named != {"meta"}:  # where nothing has memory
                _require_embedding(name, model)
            _check_cells(name, model)
            return found
        dtype = kwargs.get("dtype") or kwargs.get("torch_dtype")
        if dtype not in (None, "auto", "float32", torch.float32):
            rule, advice = "must be float32 for compressed weights", "Export the run from before gatedrnn compress"
            raise ArgumentError("GatedRNNForCausalLM.dtype", rule, dtype, advice)
        file = cached_file(name, SAFE_WEIGHTS_NAME, **hub)
        model = cls(config)
        put_weights(model.model, read_weights(Path(str(file)), model.model, "model."))
        _check_cells(name, model)
        nothing = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
        return (model.eval(), nothing) if kwargs.get("output_loading_info") else model.eval()


def _there(mask: Tensor | None, ids: Tensor) -> Tensor | None:
    """Where something stands [B, T], None if everywhere. Raises: ArgumentError: a mask of other rows or fewer columns."""
    if mask is None:
        return None
    rows, steps = ids.shape
    if mask.dim() != 2 or len(mask) != rows or mask.shape[1] < steps:
        got, advice = f"{list(mask.shape)} for ids of {[rows, steps]}", "Lengthen it with the ids"
        raise ArgumentError("GatedRNNForCausalLM.attention_mask", "must be [B, T] or longer", got, advice)
    there = mask[:, mask.shape[1] - steps :].bool()
    return None if bool(there.all()) else there


def _require_embedding(name: Any, model: GatedRNNForCausalLM) -> None:
    """Raise CheckpointError if the embedding was not in the file: transformers leaves one that is tied without memory."""
    if model.model.embedding.weight.is_meta and not hasattr(model, "hf_device_map"):
        raise unfit(name, "model.embedding.weight, which is not in the file")


def _check_cells(name: Any, model: GatedRNNForCausalLM) -> None:
    """Raise EquationError if a cell of one's own is not the one that the model was saved with."""
    written = getattr(model.config, "equations", None)
    if written is not None:
        check_equations(str(name), written, model.model, 'remove "equations" from its config.json')


def unfit(name: Any, got: str) -> CheckpointError:
    """The error of weights that do not fit their configuration."""
    rule, advice = "must hold the weights that config.json describes", "Save the model again, or export the run again"
    return CheckpointError(str(name), rule, got, advice)
