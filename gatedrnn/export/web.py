"""A run as a page without a server: one static folder with the graph, onnxruntime-web and a page written by hand."""

import json
import tempfile
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from gatedrnn import __version__
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import write_folder, write_json
from gatedrnn.data import EOS, UNK
from gatedrnn.data.subwords import Subwords
from gatedrnn.export.agreement import alike, in_float16, readings_by_graph, readings_of
from gatedrnn.export.runtime import runtime_files
from gatedrnn.export.writing import onnx, require
from gatedrnn.models import generate
from gatedrnn.studies.parsing import has_distances
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.run import Run
from gatedrnn.training.scores import known_perplexity

PAGE = ("index.html", "style.css", "start.js", "page.js", "model.js", "reading.js", "writing.js", "drawing.js", "tree.js",
        "text.js", "penn.js", "letters.js", "numbers.js")  # fmt: skip
"""The page's own files, in gatedrnn/export/page."""

_EXAMPLES, _SAMPLES = 4, 16
_SENTENCES = (
    "the old man who sat near the window said nothing",
    "the company said it would sell its shares next year",
    "a man in a blue shirt is riding a bike down the street",
    "people who live in large cities often want to move away",
    "the children were playing in the park when it began to rain",
    "she told him that the house had been sold",
)
_HINTS = {
    "word": "Put spaces between words, as in the training text.",
    "char": "The text is read character by character, spaces included.",
    "subword": "Write as usual; the text is read in subwords.",
}
_STOP = " Put spaces around punctuation marks too: “the cat sleeps .”"
_CUT = {
    "penn": "Write one sentence as usual; it is split into words as in the Penn Treebank.",
    "characters": "Write as usual; every character is a word, and spaces do not count.",
}


def export_run(
    run: Run, folder: Path, *, int8: bool = False, runtime: Path | str | None = None, fetch: bool = True
) -> None:
    """Write a run of language modelling as a folder that any static file server shows, whole or not at all.

    Weights are stored as float16, or as float32 where some sentences that are read here would not have the model's trees or, to
    three digits, its surprisals.

    Args:
        int8: weights as int8: half the bytes again, with surprisals that differ in the third digit.
        runtime, fetch: as in `runtime_files`.

    Raises: ArgumentError: a run of another task, subwords that the page cannot cut, or a library or the runtime is missing.
        DataError: the folder cannot be written, or the runtime not be fetched.
    """
    require()
    if run.config.task != LanguageModelling.name:
        rule, advice = f"takes a run of the task {LanguageModelling.name}", "Export it with --to onnx"
        raise ArgumentError("--to web", rule, f"a run of the task {run.config.task}", advice)
    if isinstance(run.vocabulary.splitter, Subwords):
        _check_subwords(run.vocabulary.splitter)
    binaries = runtime_files(Path(runtime) if runtime is not None else None, fetch=fetch)
    sampled = _sampled(run)
    examples = _examples(run, sampled)
    ids = [run.vocabulary.encode(run.vocabulary.tokens(example)) for example in examples] + sampled
    weights, graph = _graph(run, int8, [each for each in ids if each])
    loaded = sum(map(len, binaries.values())) + len(graph)
    sizes = {"graph_bytes": len(graph), "download_bytes": loaded}
    about = _about(run) | {"examples": examples, "weights": weights} | sizes

    def fill(place: Path) -> None:
        _write_own(place, binaries)
        (place / "model.onnx").write_bytes(graph)
        write_json(place / "page.json", about)
        run.vocabulary.save(place / "vocabulary.json")

    write_folder(folder, fill)


def _write_own(place: Path, binaries: dict[str, bytes]) -> None:
    """What is the same for every run: the page and its runtime."""
    own = files("gatedrnn.export") / "page"
    for name in PAGE:
        (place / name).write_bytes((own / name).read_bytes())
    (place / "runtime").mkdir()
    for name, data in binaries.items():  # .js: servers know its type everywhere
        (place / "runtime" / name.replace(".mjs", ".js")).write_bytes(data)
    (place / "runtime" / "LICENSE.txt").write_bytes((own / "runtime-license.txt").read_bytes())


def _graph(run: Run, int8: bool, sentences: list[list[int]]) -> tuple[str, bytes]:
    """How its weights are stored, and the graph."""
    with tempfile.TemporaryDirectory() as folder:
        graph = onnx(run.model, Path(folder) / "graph", int8=int8, only=["sequence"])["sequence"].read_bytes()
    if int8:
        return "int8", graph
    small = in_float16(graph)
    same = alike(readings_of(run, sentences), readings_by_graph(run, small, sentences))
    return ("float16", small) if same else ("float32", graph)


def _about(run: Run) -> dict[str, Any]:
    """What the page says and needs to know of a run."""
    layers, model, data = list(run.model.layers), run.config.model, run.config.data
    states = [(f"{name}_{k}", layer.hidden_size) for k, layer in enumerate(layers, 1) for name in layer.spec.states]
    perplexity, told = known_perplexity(run.folder)
    return {
        "name": _name(run.folder.resolve()),
        "cell": model.cell,
        "layers": [layer.hidden_size for layer in layers],
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "tokens": len(run.vocabulary),
        "level": run.vocabulary.level,
        "hint": _hint(run),
        "mapping": data.mapping,
        "perplexity": perplexity,
        "perplexity_of": told,
        "masters": has_distances(run.model),
        "default_layer": run.model.config.layer_of_trees,
        "gate": run.model.config.tree_gate,
        "states": states,
        "outputs": [f"{layer.spec.states[0]}_{k}" for k, layer in enumerate(layers, 1)],
        "version": __version__,
    }


def _hint(run: Run) -> str:
    """How to write a sentence for this run."""
    level, tokenize = run.vocabulary.level, run.vocabulary.tokenize
    if tokenize in _CUT:
        return _CUT[tokenize]
    return _HINTS[level] + (_STOP if level == "word" and "." in run.vocabulary.ids else "")


def _name(folder: Path) -> str:
    """A run's name: that of its folder, or of the one above where it is called `run`."""
    return folder.parent.name if folder.name == "run" and folder.parent.name else folder.name


def _sampled(run: Run) -> list[list[int]]:
    """Sentences by the model itself, without an unknown token: what its vocabulary can say."""
    eos, unknown = run.vocabulary.ids[EOS], run.vocabulary.ids[UNK]
    generator = torch.Generator().manual_seed(1)
    longest = 12 if run.vocabulary.level == "word" else 60
    found: list[list[int]] = [[]]
    for token in islice(generate(run.model, [eos], temperature=0.7, generator=generator), _SAMPLES * longest):
        if token == eos or len(found[-1]) == longest:
            found.append([])
        elif token != unknown:
            found[-1].append(token)
    return [ids for ids in found[:-1] if ids] or [[eos]]


def _examples(run: Run, sampled: list[list[int]]) -> list[str]:
    """Sentences to begin with: some of English if the run knows all their tokens, and what the model itself writes."""
    vocabulary = run.vocabulary
    stop = ""
    if vocabulary.level == "word" and "." in vocabulary.ids:
        stop = " ." if vocabulary.tokenize == "none" else "."
    english = [sentence + stop for sentence in _SENTENCES]
    known = [each for each in english if vocabulary.ids[UNK] not in vocabulary.encode(vocabulary.tokens(each))]
    own = (" ".join(vocabulary.text(vocabulary.decode(ids)).split()) for ids in sampled)
    cut = vocabulary.tokens if vocabulary.tokenize == "characters" else str.split
    fit = [text for text in own if 5 <= len(cut(text)) <= 12]
    return list(dict.fromkeys([*known, *fit]))[:_EXAMPLES]


def _check_subwords(splitter: Subwords) -> None:
    """Raises: ArgumentError: the page cannot cut text as this tokenizer does."""
    settings = json.loads(splitter.settings)
    before, model = settings["pre_tokenizer"] or {}, settings["model"]
    reasons = {
        "a model other than BPE": model["type"] != "BPE",
        "no byte-level pre-tokenizer": before.get("type") != "ByteLevel" or not before.get("use_regex", True),
        "a prefix space": bool(before.get("add_prefix_space")),
        "a normalizer": settings["normalizer"] is not None,
        "a decoder that is not byte-level": (settings["decoder"] or {}).get("type") != "ByteLevel",
        "prefixes, suffixes, ignored merges or byte fallback": any(
            model.get(key)
            for key in ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
        ),
        "bytes that are no tokens, left out or read together": not splitter.complete
        and (model.get("unk_token") is None or bool(model.get("fuse_unk"))),
        "added tokens that absorb spaces": any(
            token[key] for token in settings["added_tokens"] for key in ("lstrip", "rstrip", "single_word")
        ),
    }
    got = next((reason for reason, holds in reasons.items() if holds), None)
    if got:
        rule = "supports only byte-level BPE subwords like GPT-2's, which gatedrnn learns"
        raise ArgumentError("--to web", rule, f"a tokenizer with {got}", "Export it with --to hf or --to onnx")
