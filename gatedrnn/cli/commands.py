"""One function a command: take parsed options, call the package, print."""

import math
import os
import shlex
import shutil
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from gatedrnn.cells import CELLS
from gatedrnn.cli.accept import accept  # noqa: F401 - a command, found here by name
from gatedrnn.cli.compression import compress  # noqa: F401 - a command, found here by name
from gatedrnn.cli.gates import gates  # noqa: F401 - a command, found here by name
from gatedrnn.cli.parsing import eval_parsing, parse  # noqa: F401 - commands, found here by name
from gatedrnn.cli.surprisal import surprisal  # noqa: F401 - likewise
from gatedrnn.cli.syntax import eval_syntax  # noqa: F401 - likewise
from gatedrnn.cli.text import GO_ON, INTERRUPTED, STATES
from gatedrnn.core.config import from_dict
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import to_json
from gatedrnn.data import EOS, Corpus, find_splits
from gatedrnn.data.text import rereadable
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE
from gatedrnn.tasks import TASKS, LanguageModelling
from gatedrnn.training.run import TOKENS_FOLDER, Run, checkpoints, load_run

Options = Any


def train(options: Options) -> int:
    """`gatedrnn train`."""
    from gatedrnn.training.config import RunConfig
    from gatedrnn.training.run import check_begun, check_free, continued

    sections = {name: _plain(options[name]) for name in ("data", "model", "training")}
    for name in ("gates", "options"):  # the parser filled in what was not given: that is the cell's to choose
        asked, given = sections["model"][name] or {}, [f"{key}." for key in options.given]
        said = {k: v for k, v in asked.items() if any(key.startswith(f"model.{name}.{k}.") for key in given)}
        if said or name == "options":
            sections["model"][name] = said
    goes_on = options.resume and options.out is not None and (Path(options.out) / CONFIG_FILE).exists()
    cell = sections["model"]["cell"]  # what a file holds for another cell, that an option replaced, may stand
    left = {key.removeprefix("model.") for key, other in options.cells.items() if goes_on or other != cell}
    sections["model"] = RunConfig.types({"task": options.task})["model"].without_unread(sections["model"], left)
    config = _absolute(from_dict(RunConfig, {**sections, "task": options.task}, ""))
    data = config.data.folder
    if options.resume and options.out is None:
        raise ArgumentError("train --resume", "needs the run to go on with", "no --out", "Write --out RUN --resume")
    out = Path(options.out) if options.out else _free(Path("runs") / (Path(data).resolve().name if data else "grammar"))
    if not options.resume:
        check_free(out)
    elif check_begun(out) or goes_on:
        config = _absolute(continued(out, config, options.given))
    elif not options.given:
        raise DataError(str(out), "must hold a run to go on with", "no config.yaml", "Check --out")
    existed = out.exists()
    try:
        return _train(config, out, options)
    except BaseException as error:  # whatever stops it: no half-written run stays
        begun = (out / WEIGHTS_FILE).exists()
        if not existed and not begun and _rank() == 0:
            shutil.rmtree(out, ignore_errors=True)
        if begun and isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_go_on(out, options)) from None
        raise


def _absolute(config: Any) -> Any:
    """The configuration with its paths absolute, so that a run can be gone on with from another folder."""
    data = config.data
    known = {name: path for name in ("folder", "tokenizer") if (path := getattr(data, name, None)) is not None}
    absolute = {name: str(Path(path).absolute()) for name, path in known.items()}
    return replace(config, data=replace(data, **absolute))


def _rank() -> int:
    """This process's number, under torchrun; 0 is the one that writes."""
    return int(os.environ.get("RANK", "0"))


def _train(config: Any, out: Path, options: Options) -> int:
    from gatedrnn.training.loop import train as run_training
    from gatedrnn.training.progress import TrainingDisplay

    data = config.data.folder
    if data is None and _rank() == 0 and not (out / CONFIG_FILE).exists():
        _make_text(out, config)
    console = Console(stderr=options.json, quiet=_rank() > 0)
    begun = bool(checkpoints(out))
    with console.status("reading the text"):
        task = TASKS[config.task].open(config.data, data or out / "text", out if begun else None)
        task.cache(out / TOKENS_FOLDER)
    doing = f"{'going on with' if begun else 'training'} {config.model.cell} {'in' if begun else 'into'} {out}"
    for line in (task.describe(), doing):
        console.print(line, highlight=False, soft_wrap=True)
    with TrainingDisplay(console, config.training.epochs + config.training.finetune_epochs, task) as display:
        outcome = run_training(config, task, out, display, resume=options.resume)
    if _rank() > 0:
        return INTERRUPTED if outcome.stopped == "interrupted" else 0
    measure, model = task.measure, load_run(out, None).model
    scores: dict[str, Any] = {"run": str(out), "epochs": outcome.epochs, f"best_valid_{measure}": outcome.best}
    scores["stopped"] = outcome.stopped
    tested = "test" in task.splits and outcome.stopped != "interrupted"
    if tested:
        scores[f"test_{measure}"] = task.score(model, config.training, "test").shown[measure]
    if options.json:
        print(to_json(scores))
    else:
        test = f", test {scores[f'test_{measure}']:.2f}" if tested else ""
        valid = "not yet validated" if outcome.best is None else f"best valid {measure} {outcome.best:.2f}{test}"
        console.print(f"{outcome.stopped}: {valid}; the run is in {out}", highlight=False, soft_wrap=True)
    if outcome.stopped != "interrupted":
        return 0
    console.print(_go_on(out, options), highlight=False, soft_wrap=True)
    return INTERRUPTED


def evaluate(options: Options) -> None:
    """`gatedrnn evaluate`."""
    from gatedrnn.tasks.cache import Cache
    from gatedrnn.tasks.dynamic import Dynamic

    cache, dynamic = _chosen(options, "cache", Cache), _chosen(options, "dynamic", Dynamic)
    run = load_run(options.run, None)
    if run.config.task == "inference":
        _evaluate_pairs(run, options)
        return
    path: Any = rereadable(options.data) if options.data else own_text(run)["test"]
    corpus = Corpus({"text": path}, run.vocabulary, empty_lines=run.config.data.empty_lines)
    result = _evaluate(run, corpus["text"], options.batch_size, reset=options.reset, cache=cache, dynamic=dynamic)
    found: dict[str, Any] = asdict(result)
    if run.vocabulary.level != "word":
        found["bits_per_character"] = result.loss_nats * result.tokens / (math.log(2) * corpus.characters["text"])
    if options.json:
        said = {"state": "reset"} if options.reset else {}
        said |= {name: _settings(what) for name, what in (("cache", cache), ("dynamic", dynamic)) if what}
        print(to_json(found | said))
        return
    print(f"perplexity {result.perplexity:.4f}  loss {result.loss_nats:.5f} nats a token  {result.tokens} tokens")
    if "bits_per_character" in found:
        counted = f"{corpus.characters['text']} characters, line ends included"
        print(f"{found['bits_per_character']:.4f} bits per character  {counted}")
    share = 100 * corpus.unknown["text"] / result.tokens
    state = STATES[True] if options.reset else f"{STATES[False]}, batch size {options.batch_size}"
    added = [
        f"{name} ({', '.join(f'{key} {value:g}' for key, value in _settings(what).items())})"
        for name, what in (("continuous cache", cache), ("dynamic evaluation", dynamic))
        if what
    ]
    print("; ".join([state, *added, f"{corpus.unknown['text']} tokens ({share:.1f} %) are <unk>"]))


def _evaluate_pairs(run: Run, options: Options) -> None:
    """Accuracy by number of operators."""
    from gatedrnn.data.labelled import LabelledPairs
    from gatedrnn.data.logic import read_pairs
    from gatedrnn.tasks.inference import accuracy

    for name in ("cache", "dynamic", "reset"):
        if options[name]:
            rule = f"is read by runs of {LanguageModelling.name} only"
            raise ArgumentError(f"--{name}", rule, f"a run of {run.config.task}", f"Drop --{name}")
    paths: Any = [rereadable(options.data)] if options.data else own_text(run)["test"]
    pairs = LabelledPairs([pair for path in paths for pair in read_pairs(path)], run.vocabulary)
    if not len(pairs):
        raise DataError(str(paths[0]), "must hold at least one pair", "none", "Check the file")
    result = accuracy(run.model, pairs)
    if options.json:
        print(to_json(asdict(result)))
        return
    print(f"accuracy {result.accuracy:.2f} %  loss {result.loss_nats:.5f} nats a pair  {result.pairs} pairs")
    table = Table(title=f"the most frequent label alone: {result.majority:.2f} %")
    for column in ("operators", "accuracy", "pairs"):
        table.add_column(column, justify="right")
    for number, found in result.by_operators.items():
        table.add_row(str(number), f"{found['accuracy']:.2f}", f"{found['pairs']:,}")
    Console().print(table)


def generate(options: Options) -> None:
    """`gatedrnn generate`."""
    import torch

    from gatedrnn.core.checks import positive_int
    from gatedrnn.models import generate as sample

    run = load_run(options.run)
    positive_int("--words", options.words)
    if not 0 <= options.seed < 1 << 63:
        raise ArgumentError("--seed", "must lie in 0…2^63 − 1", options.seed, "Give a whole number such as 1")
    prompt = run.vocabulary.tokens(options.prompt)
    encode = run.vocabulary.encode_foreign if run.vocabulary.level == "word" else run.vocabulary.encode
    ids = sample(
        run.model,
        [run.vocabulary.ids[EOS], *encode(prompt)],
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        generator=torch.Generator().manual_seed(options.seed),
    )
    words = [*prompt, *(run.vocabulary.words[next(ids)] for _ in range(options.words))]
    if options.json:
        print(to_json({"text": words, "prompt_words": len(prompt), "seed": options.seed}))
        return
    print(run.vocabulary.text(words))


def bench(options: Options) -> int:
    """`gatedrnn bench`."""
    from gatedrnn.studies.speed import GPU_GRID, markdown, measure

    gpu = options.device == "cuda"
    cells, results = options.cell or list(CELLS), []
    for shape in options.shape or (["S1", "S2", *GPU_GRID] if gpu else ["S3"]):
        compiled = ("compiled",) if shape in ("S1", "S2") else ()  # minutes a shape
        usual = ("triton", "reference", *compiled) if gpu else ("cpu", "reference")
        backends = tuple(options.backend or usual)
        result = measure(
            shape, cells, options.runs, backends, options.mm, options.parts, options.memory, options.device
        )
        results.append(result)
        if not options.json:
            print(markdown(result), flush=True)
    if options.json:
        print(to_json(results, indent=2))
    return 0


def explain(options: Options) -> None:
    """`gatedrnn explain`."""
    from gatedrnn.cli.explain import hops, kernel

    if options.kernel:
        print(kernel(options.cell))
        return
    found = hops(options.cell)
    if options.json:
        print(to_json(found))
        return
    table = Table(title=found["title"], show_lines=False)
    for column in ("what", "how", "where"):
        table.add_column(column, overflow="fold")
    for hop in found["hops"]:
        table.add_row(hop["what"], hop["how"], hop["where"])
    Console(width=max(Console().width, 130)).print(table)


def demo(options: Options) -> None:
    """`gatedrnn demo`."""
    from gatedrnn.cli.demo import run_demo

    results = run_demo(Path(options.out), options.seed, Console(stderr=options.json))
    if options.json:
        print(to_json(results))


def _evaluate(run: Run, tokens: Any, batch_size: int, **how: Any) -> Any:
    from gatedrnn.core.checks import positive_int
    from gatedrnn.tasks.perplexity import evaluate as perplexity

    return perplexity(run.model, tokens, run.vocabulary, batch_size=positive_int("--batch-size", batch_size), **how)


def _chosen(options: Options, name: str, kind: type) -> Any:
    """`kind` as its options `--NAME-FIELD` say, None without `--NAME`, which those options need."""
    values = {field.name: options[f"{name}_{field.name.rstrip('_')}"] for field in fields(kind)}
    given = {field: value for field, value in values.items() if value is not None}
    if given and not options[name]:
        option = f"--{name}-{next(iter(given)).rstrip('_')}"
        raise ArgumentError(option, f"needs --{name}", "none", f"Add --{name}, or drop {option}")
    return kind(**given) if options[name] else None


def _settings(what: Any) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in asdict(what).items()}


def _go_on(out: Path, options: Options) -> str:
    """What to do after an interrupt: without --out, the same command would not find the run."""
    return GO_ON if options.out else f"`gatedrnn train --out {shlex.quote(str(out))} --resume` goes on"


def own_text(run: Run) -> dict[str, Any]:
    """Files of a run's own data by split. Raises: DataError: they are gone, or there is no test text."""
    from gatedrnn.data.labelled import find_pairs

    folder = run.config.data.folder or run.folder / "text"
    found = find_pairs(folder) if run.config.task == "inference" else find_splits(folder)
    if "test" not in found:
        raise DataError(str(folder), "must hold a test text", ", ".join(found), "Name another by --data")
    return found


def _make_text(out: Path, config: Any) -> None:
    """Write what a task makes itself into a run, whole or not at all; what is there already must be the same."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".text.", suffix=".writing") as folder:
        new, text = Path(folder) / "text", out / "text"
        new.mkdir()
        TASKS[config.task].make(new, config.training.seed)
        with suppress(OSError):  # one is there
            new.rename(text)
            return
        if not text.is_dir() or any(
            not (text / path.name).is_file() or (text / path.name).read_bytes() != path.read_bytes()
            for path in new.iterdir()
        ):
            raise DataError(
                str(text), "must not exist yet", "another text", "Train on it by --data, or choose another --out"
            )


def _free(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, … if it exists."""
    candidates = [path, *(path.with_name(f"{path.name}-{k}") for k in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def _plain(namespace: Any) -> Any:
    return namespace.as_dict() if hasattr(namespace, "as_dict") else dict(namespace)
