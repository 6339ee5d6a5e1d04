"""A language model's configuration as transformers keeps it: `config.json`, and the file beside it for `trust_remote_code`."""

from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.files import write_text
from gatedrnn.models import LanguageModelConfig

_SHIM_NAME = "modeling_gatedrnn"
AUTO_MAP = {
    "AutoConfig": f"{_SHIM_NAME}.GatedRNNConfig",
    "AutoModelForCausalLM": f"{_SHIM_NAME}.GatedRNNForCausalLM",
}
"""The entry `auto_map` of config.json."""

_SHIM = '''"""What `trust_remote_code=True` reads: the classes of the package gatedrnn, which must be installed."""

from gatedrnn.hf import GatedRNNConfig, GatedRNNForCausalLM

__all__ = ["GatedRNNConfig", "GatedRNNForCausalLM"]
'''


class GatedRNNConfig(PreTrainedConfig):
    """What a `GatedRNNForCausalLM` is made of.

    Args:
        model: the section `model` of a run's YAML (`LanguageModelConfig`), with its vocabulary size.
        data, training: the run's other sections, so that it can be a run again.
        compressed: names of weights that are kept in small forms.
        vocab_size: the tokens and the padding, whose id is the last one [one more than the model's].
    """

    model_type = "gatedrnn"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]

    def __init__(
        self,
        model: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        compressed: list[str] | None = None,
        vocab_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        built = from_dict(LanguageModelConfig, {"vocabulary_size": 2} | (model or {}), "model")
        self.model = to_dict(built)
        self.data, self.training, self.compressed = dict(data or {}), dict(training or {}), list(compressed or [])
        padding = built.vocabulary_size or 0
        self.vocab_size = padding + 1 if vocab_size is None else vocab_size
        self.hidden_size, self.num_hidden_layers = built.hidden_sizes[-1], len(built.hidden_sizes)
        special: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": padding}
        kwargs["tie_word_embeddings"] = built.tied
        super().__init__(**special | kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: a saved folder imports the package instead of copying this file."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers does; beside config.json the file that its `auto_map` names, if it names one.

        A model that is saved calls this after it has noted which files are there, and uploads those that are newer.
        """
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self, "auto_map", None):
            write_text(Path(save_directory) / f"{_SHIM_NAME}.py", _SHIM)

    def built(self) -> LanguageModelConfig:
        """The model's own configuration. Raises: ArgumentError: a value is out of range or unknown."""
        return from_dict(LanguageModelConfig, self.model, "model")
