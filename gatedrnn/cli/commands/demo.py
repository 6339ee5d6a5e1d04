"""`gatedrnn demo`: grammar → model → trees, agreement, report."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option
from gatedrnn.cli.output import as_typed, say
from gatedrnn.core.errors import DataError, GatedRNNError
from gatedrnn.core.files import remove_stale, write_json
from gatedrnn.data import (
    CONSTRUCTIONS,
    DEEPER,
    EOS,
    Corpus,
    DataConfig,
    agreement_pairs,
    find_splits,
    read_treebank,
    write_corpus,
)
from gatedrnn.models import LanguageModelConfig
from gatedrnn.models.saving import CONFIG_FILE
from gatedrnn.plots.report import write_report
from gatedrnn.studies.parsing import evaluate_parsing, read_sentences
from gatedrnn.studies.syntax import log_probabilities
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.perplexity import evaluate
from gatedrnn.training.config import RunConfig, TrainingConfig, read_run_config
from gatedrnn.training.loop import train
from gatedrnn.training.progress import TrainingDisplay
from gatedrnn.training.run import METRICS_FILE, Run, held, load_run, read_metrics
from gatedrnn.trees import distances_to_spans, gold_tree
from gatedrnn.trees.scores import sentence_f1

SENTENCES = {"train": 12_000, "valid": 1_000, "test": 1_000}
PAIRS = 500
LAYER, ALGORITHM = 1, "unbiased"  # chosen on validation sentences: docs/decisions.md
MODEL = LanguageModelConfig(
    cell="onlstm", embedding_size=128, hidden_sizes=(128, 128), options={"chunk_size": 4},
    tree_layer=LAYER, input_dropout=0.1, hidden_dropout=0.1, output_dropout=0.1,
)  # fmt: skip
TRAINING = TrainingConfig(epochs=6, batch_size=32, sequence_length=40, learning_rate=0.003, device="cpu")
PAGE = "page"
"""Folder of the page that computes in the browser."""
UNFINISHED = "unfinished"
"""A file that is there until the demo has ended."""
LOCK = ".gatedrnn-demo.lock"
"""A file that is locked meanwhile."""
OWN_FILES = {"run", "results.json", "sentences.json", "report.html", PAGE, UNFINISHED, LOCK}


@dataclass(frozen=True)
class Options(arguments.Options):
    """Where, and which text."""

    out: str = option("gatedrnn-demo", "folder for report.html, results.json, run/, page/", "DIR")
    seed: int = option(1, "seed of the grammar's text and of the training")


def run(options: Options) -> dict[str, Any]:
    """What `results.json` holds. Raises: DataError: the folder holds files that are not a demo's."""
    folder, seed, console = Path(options.out), options.seed, Console(stderr=options.json)
    training = replace(TRAINING, seed=seed)
    if folder.is_dir():
        remove_stale(folder)
    _check(folder)
    with held(folder, LOCK, "a demo that another process runs"):
        try:
            (folder / UNFINISHED).touch()
            _clear(folder)
            results = _made(folder, training, console)
            (folder / UNFINISHED).unlink()
        finally:
            with suppress(OSError):  # Windows removes it by itself when it is released
                (folder / LOCK).unlink()
    return results


def _made(folder: Path, training: TrainingConfig, console: Console) -> dict[str, Any]:
    """Everything in the folder. Raises: KeyboardInterrupt."""
    began, seed = time.monotonic(), training.seed
    text, out = folder / "run" / "text", folder / "run"
    say(f"writing {SENTENCES['train']:,} sentences of the built-in grammar (seed {seed})", console)
    write_corpus(text, seed, **SENTENCES)
    corpus = Corpus(find_splits(text), min_count=1)
    config = RunConfig(DataConfig(folder=str(text.resolve()), min_count=1), MODEL, training)
    task = LanguageModelling(corpus)
    with TrainingDisplay(console, training.epochs, task) as display:
        outcome = train(config, task, out, display)
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt("the same command starts again")
    trained = load_run(out)
    say("parsing the test sentences, judging agreement pairs, drawing", console)
    parsing, sentences = _parse(trained, text / "test.trees")
    perplexity = {
        split: evaluate(trained.model, corpus[split], trained.vocabulary).perplexity for split in ("valid", "test")
    }
    results = {
        "perplexity": perplexity,
        "parsing": parsing,
        "agreement": {name: _agreement(trained, name, seed)["accuracy"] for name in CONSTRUCTIONS},
        "deeper": {name: _agreement(trained, name, seed) for name in DEEPER},
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    write_json(folder / "sentences.json", sentences)
    sizes = "-".join(map(str, MODEL.hidden_sizes))
    about = {"size": f"layers {sizes}", "train": f"{SENTENCES['train']:,}", "command": f"gatedrnn demo --seed {seed}"}
    write_report(folder / "report.html", results, read_metrics(out), sentences, about)
    _write_page(trained, folder / PAGE, console)
    results["seconds"] = round(time.monotonic() - began, 1)
    write_json(folder / "results.json", results)
    return results


def show(found: dict[str, Any], options: Options) -> None:
    """What came of it, and what to open."""
    folder, scores = Path(options.out), found["parsing"]["scores"]
    trivial = max(s["B"] for name, s in scores.items() if name not in ("model", "upper_bound"))
    say(
        f"test perplexity {found['perplexity']['test']:.2f}; F1 of its trees {scores['model']['B']:.1f} (protocol B), best"
        f" trivial parser {trivial:.1f}; simple agreement {100 * found['agreement']['simple']:.1f} %;"
        f" {found['seconds']:.0f} s"
    )
    say(f"open {folder / 'report.html'}")
    if (folder / PAGE).is_dir():
        served = f"python -m http.server --bind 127.0.0.1 --directory {as_typed(str(folder / PAGE))}"
        say(f"to type sentences of your own, run: {served}")


def _write_page(run: Run, folder: Path, console: Console) -> None:
    """The page of `export --to web`, where that needs neither a library that is missing nor the network; else a line says why."""
    from gatedrnn.export.web import export_run

    try:
        export_run(run, folder, fetch=False)
    except GatedRNNError as missing:
        command = as_typed("gatedrnn", "export", str(run.folder), "--to", "web", "--out", str(folder))
        say(f"the page of export --to web was left out: {missing}", console)
        say(f"to write it later, run: {command}", console)


def _parse(run: Run, treebank: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    gold = [gold_tree(tree) for tree in read_treebank(treebank)]
    ids = [run.vocabulary.encode(tree.words) for tree in gold]
    readings = list(read_sentences(run.model, ids, run.vocabulary.ids[EOS], [LAYER], keep_gates=True))
    predicted = [distances_to_spans(reading.distances[LAYER], ALGORITHM) for reading in readings]
    result = evaluate_parsing(gold, predicted)
    parsing = {
        "sentences": result.sentences,
        "algorithm": ALGORITHM,
        "layer": LAYER,
        "max_words": None,
        "words": "ptb",
        "scores": result.scores,
        "label_recall": result.recall,
    }
    drawn = []
    for tree, spans, reading in zip(gold, predicted, readings, strict=True):
        if len(tree) < 6 or len(drawn) == 10:
            continue
        f1 = 100 * sentence_f1(spans - {tree.whole}, tree.spans - {tree.whole})
        trees = {"words": tree.words, "gold": tree.labelled, "induced": sorted(spans)}
        drawn.append(trees | {"gates": {f"layer {LAYER}": reading.gates[LAYER].round(4).tolist()}, "f1": f1})
    return parsing, drawn


def _agreement(run: Run, construction: str, seed: int) -> dict[str, Any]:
    """The share of pairs judged correctly, and the first that is not: the good sentence and the bad one."""
    pairs = agreement_pairs(construction, PAIRS, seed)
    sentences = [run.vocabulary.encode(words) for pair in pairs for words in (pair.good, pair.bad)]
    scores = log_probabilities(run.model, sentences, run.vocabulary.ids[EOS])
    wrong = [pair for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True) if good <= bad]
    shown = [" ".join(words) for words in (wrong[0].good, wrong[0].bad)] if wrong else None
    return {"accuracy": 1 - len(wrong) / len(pairs), "wrong": shown}


def _check(folder: Path) -> None:
    """Raises DataError: the folder holds anything but an earlier demo, or its run was trained on."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    begun = (folder / "run" / CONFIG_FILE).is_file()
    finished = "results.json" in present and begun  # others write results.json too
    own = OWN_FILES if finished or UNFINISHED in present else set()
    if own and begun:
        training = read_run_config(folder / "run" / CONFIG_FILE, written=True).training
        log = folder / "run" / METRICS_FILE  # a line an epoch; the configuration's may have been set back
        epochs = log.read_bytes().count(b"\n") if log.is_file() else 0
        whole = epochs == TRAINING.epochs or (UNFINISHED in present and epochs < TRAINING.epochs)
        if not whole or replace(training, seed=TRAINING.seed) != TRAINING:
            own = own - {"run"}
    foreign = sorted(present - own - {LOCK}) or (["a file"] if folder.is_file() else [])
    if foreign:
        advice = "Choose another --out, or delete the folder"
        raise DataError(str(folder), "must be new, empty, or hold only a demo", foreign[0], advice)


def _clear(folder: Path) -> None:
    """Remove an earlier demo from `folder`."""
    for name in ("run", PAGE):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in OWN_FILES - {"run", PAGE, UNFINISHED, LOCK}:
        (folder / name).unlink(missing_ok=True)
