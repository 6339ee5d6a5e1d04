"""A run as a folder of transformers, and such a folder as a run."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import logging

from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_folder, write_text
from gatedrnn.hf.card import card
from gatedrnn.hf.configuration import GatedRNNConfig
from gatedrnn.hf.modeling import GatedRNNForCausalLM
from gatedrnn.hf.reading import read_model, reading, without_padding
from gatedrnn.hf.tokenization import INSTEAD, tokenizer_of, vocabulary_of
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import Run, without_paths, write_trained


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
        model = read_model(source, config)
    tokenizer = reading(source, lambda: AutoTokenizer.from_pretrained(source))
    sections = {"data": config.data, "model": to_dict(model.model.config), "training": config.training}
    run_config = reading(source, lambda: from_dict(RunConfig, sections, ""))
    data = run_config.data
    takes_words = data.level == "word" and data.tokenize == "none"
    language_model = without_padding(source, model, tokenizer, takes_words)
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
    return reading(source, lambda: GatedRNNConfig.from_pretrained(source))
