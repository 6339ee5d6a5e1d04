"""Runs of every level beside their folders of transformers, for the tests of those."""

import copy
import functools
import shutil

from terminal import works
from transformers import AutoModelForCausalLM, AutoTokenizer

from gatedrnn.training.run import load_run

LEVELS = ("run", "char", "subword", "int8")


def export_levels(folder):
    """The folder with the runs `LEVELS`, each with its folder of transformers `hf-…`; written once."""
    if not (folder / "int8").exists():
        works("compress", folder / "run", "--method", "int8", "--out", folder / "int8")
    for name in LEVELS:
        if not (folder / f"hf-{name}").exists():
            works("export", folder / name, "--to", "hf", "--out", folder / f"hf-{name}")
    return folder


@functools.cache
def loaded(folder, name):
    """The model, the tokenizer and the run of a level: the same for all tests, which leave them as they are."""
    place = folder / f"hf-{name}"
    return AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place), load_run(folder / name)


def loaded_to_change(folder, name):
    """The same, with a model and a tokenizer to be trained, resized, saved or lent to a pipeline."""
    model, tokenizer, run = loaded(folder, name)
    return copy.deepcopy(model), copy.deepcopy(tokenizer), run


def copied(exported, folder, name="run"):
    """A copy of a folder of transformers, to be changed."""
    return shutil.copytree(exported / f"hf-{name}", folder)
