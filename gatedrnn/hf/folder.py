"""A run as a folder of transformers; and such a folder as a run: every weight must be there, in its shape, and finite."""

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError, GatedRNNError, first_line
from gatedrnn.core.files import write_folder, write_text
from gatedrnn.hf.card import card
from gatedrnn.hf.configuration import GatedRNNConfig
from gatedrnn.hf.modeling import GatedRNNForCausalLM, unfit
from gatedrnn.hf.tokenization import INSTEAD, padding_id, tokenizer_of, vocabulary_of
from gatedrnn.models import LanguageModel
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import Run, without_paths, write_trained
from gatedrnn.weights.compressed import stored_parts

_BY_TOKEN = ("embedding.weight", "decoder.weight", "decoder.bias")  # a row for each token


def export_run(run: Run, folder: Path) -> None:
    """Write a run of language modelling as a folder that transformers loads, whole or not at all.

    It holds config.json, generation_config.json, model.safetensors, the tokenizer, a model card (README.md) and the shim for
    `trust_remote_code`. Paths of this machine are left out.

    Raises: DataError: the folder is not empty or cannot be written, or `<pad>` is a word of the vocabulary.
        ArgumentError: a run of another task, or one with `data.tokenize: penn`.
    """
    if run.config.task != LanguageModelling.name:
        rule, advice = f"takes a run of the task {LanguageModelling.name}", "Export it with --to onnx"
        raise ArgumentError("--to hf", rule, f"a run of the task {run.config.task}", advice)
    if run.vocabulary.tokenize == "penn":
        rule = "cannot split words as data.tokenize=penn does"
        raise ArgumentError("--to hf", rule, "a run of tokenize=penn", INSTEAD)
    model = wrapped(run)
    tokenizer = tokenizer_of(run.vocabulary)

    def fill(place: Path) -> None:
        model.save_pretrained(place)
        mode = stat.S_IMODE((place / "config.json").stat().st_mode)  # as the umask has it
        for path in place.glob("*.safetensors"):  # which are written for their owner alone
            path.chmod(mode)
        tokenizer.save_pretrained(place)
        write_text(place / "README.md", card(run, folder.resolve().name))

    with _quiet():
        write_folder(folder, fill)


def wrapped(run: Run) -> GatedRNNForCausalLM:
    """A run's model as transformers calls it; the very same weights."""
    sections = to_dict(without_paths(run.config))
    model = GatedRNNForCausalLM(GatedRNNConfig(sections["model"], sections["data"], sections["training"]))
    model.model = run.model
    return model.eval()


def import_folder(source: Path, folder: Path) -> None:
    """Write a folder that `export_run` wrote, or that was trained on and saved again, as a run.

    A row of the padding token, which `resize_token_embeddings(len(tokenizer))` adds, is left out.

    Raises: DataError: it is no such folder, damaged, or `folder` is not empty. CheckpointError: a weight is missing, unknown,
        of another shape or not finite, there is no model.safetensors, or the model was resized to other sizes.
    """
    config = _config(source)
    with _quiet():
        model = _read_model(source, config)
    tokenizer = _reading(source, lambda: AutoTokenizer.from_pretrained(source))
    sections = {"data": config.data, "model": to_dict(model.model.config), "training": config.training}
    run_config = _reading(source, lambda: from_dict(RunConfig, sections, ""))
    data = run_config.data
    takes_words = data.level == "word" and data.tokenize == "none"
    language_model = _without_padding(source, model, tokenizer, takes_words)
    run_config = replace(run_config, model=language_model.config)
    vocabulary = vocabulary_of(tokenizer, data.level, language_model.embedding.num_embeddings, data.tokenize)

    write_folder(folder, lambda place: write_trained(place, run_config, language_model, vocabulary))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of transformers, as it all takes a moment, and without its report of what we refuse."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _config(source: Path) -> GatedRNNConfig:
    """Raises: DataError: there is no config.json of a gatedrnn model."""
    path, advice = source / "config.json", "Name a folder that `gatedrnn export --to hf` wrote"
    try:
        kind = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except OSError as error:
        raise DataError(str(path), "must be a readable file", error.strerror or str(error), advice) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise DataError(str(path), "must be a configuration of transformers", detail, advice) from error
    if kind != GatedRNNConfig.model_type:
        raise DataError(str(path), "must have model_type gatedrnn", repr(kind), advice)
    return _reading(source, lambda: GatedRNNConfig.from_pretrained(source))


def _reading(source: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns; an error of transformers in one line. Raises: DataError."""
    try:
        return read()
    except GatedRNNError:
        raise
    except Exception as error:  # transformers and tokenizers raise many
        raise DataError(str(source), "cannot be read", first_line(error), "Export the run again") from error


def _read_model(source: Path, config: GatedRNNConfig) -> GatedRNNForCausalLM:
    """The model of a folder.

    Raises: CheckpointError: there is no model.safetensors, or a weight is missing, unknown, of another shape or not finite.
        DataError: a file is damaged.
    """
    if not any((source / name).is_file() for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)):
        pickles = sorted(path.name for path in source.glob("*.bin"))
        got, advice = f"only {pickles[0]}" if pickles else "no such file", "Save the model with save_pretrained"
        raise CheckpointError(str(source), f"must hold {SAFE_WEIGHTS_NAME}; nothing is unpickled", got, advice)
    how = {"config": config, "use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, found = _reading(source, lambda: GatedRNNForCausalLM.from_pretrained(source, **how))
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


def _without_padding(
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
