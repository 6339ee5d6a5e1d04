"""Folders of transformers, read strictly: every weight, in its shape, finite, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from gatedrnn.core.errors import CheckpointError, DataError, GatedRNNError
from gatedrnn.hf.configuration import GatedRNNConfig
from gatedrnn.hf.modeling import GatedRNNForCausalLM, unfit
from gatedrnn.hf.tokenization import padding_id
from gatedrnn.models import LanguageModel
from gatedrnn.weights.compressed import stored_parts

_BY_TOKEN = ("embedding.weight", "decoder.weight", "decoder.bias")  # a row for each token


def reading(source: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns; an error of transformers in one line. Raises: DataError."""
    try:
        return read()
    except GatedRNNError:
        raise
    except Exception as error:  # transformers and tokenizers raise many
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(str(source), "cannot be read", reason, "Export the run again") from error


def read_model(source: Path, config: GatedRNNConfig) -> GatedRNNForCausalLM:
    """The model of a folder.

    Raises: CheckpointError: there is no model.safetensors, or a weight is missing, unknown, of another shape or not finite.
        DataError: a file is damaged.
    """
    if not any((source / name).is_file() for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)):
        pickles = sorted(path.name for path in source.glob("*.bin"))
        got, advice = f"only {pickles[0]}" if pickles else "no such file", "Save the model with save_pretrained"
        raise CheckpointError(str(source), f"must hold {SAFE_WEIGHTS_NAME}; nothing is unpickled", got, advice)
    how = {"config": config, "use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, found = reading(source, lambda: GatedRNNForCausalLM.from_pretrained(source, **how))
    for kind, what in (
        ("missing_keys", "is not in the file"),
        ("unexpected_keys", "is not in the model"),
        ("mismatched_keys", "has another shape"),
    ):
        for name in sorted(each if isinstance(each, str) else each[0] for each in found[kind]):
            raise unfit(source, f"{name}, which {what}")
    for name, value in model.model.state_dict().items():
        if not all(bool(torch.isfinite(part).all()) for part in stored_parts(value)):
            got = f"{name} with NaN or infinity"
            raise CheckpointError(str(source), "must hold finite weights", got, "Train again")
    return model


def without_padding(
    source: Path, model: GatedRNNForCausalLM, tokenizer: PreTrainedTokenizerFast, takes_words: bool
) -> LanguageModel:
    """The language model, without the row of the padding that `resize_token_embeddings(len(tokenizer))` adds.

    Args: takes_words: whether the vocabulary may have got words of its own after the padding.
    Raises: CheckpointError: the model was resized to another number of rows.
    """
    rows, padding, size = model.model.embedding.num_embeddings, padding_id(tokenizer), len(tokenizer)
    if padding is None or rows == padding:
        return model.model
    if rows != size or (size > padding + 1 and not takes_words) or model.config.compressed:
        rule = f"must have a row of weights for each of the {padding} tokens"
        more = f", or for all {size} of the tokenizer" if takes_words or size == padding + 1 else ""
        advice = "Use resize_token_embeddings(len(tokenizer)); only runs of words can have more tokens"
        raise CheckpointError(str(source), rule + more, f"{rows} rows", advice)
    return _without_row(model.model, padding)


def _without_row(model: LanguageModel, row: int) -> LanguageModel:
    """The same model without one token."""
    made = LanguageModel(replace(model.config, vocabulary_size=model.embedding.num_embeddings - 1))
    tensors: dict[str, Tensor] = {
        name: torch.cat([value[:row], value[row + 1 :]]) if name in _BY_TOKEN else value
        for name, value in model.state_dict().items()
    }
    made.to(model.embedding.weight.dtype).load_state_dict(tensors)
    return made.eval()
