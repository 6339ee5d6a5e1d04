"""Damaged files and odd options for every command: `python -m tests.property.fuzz_files --cases 2000`.

A case is a command on a copy of tiny runs, texts, treebanks, pairs or configurations, one of them damaged, or with options that
nobody should give. What may follow: success; or exit code 1 or 2 with our line on standard error. Everything else is a finding: a
traceback, a hang, a crash of the process, memory without bounds, invalid JSON, an input that changed, a run half written.

Cases run one after another in a process of their own, with an alarm and a limit of memory; `--case K` repeats one here.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .damage import copied, damaged, packed, replaced, value

SECONDS = 60  # of the processor
WAITED_SECONDS = 600  # on the clock, in the process of the cases
BYTES = 6 << 30  # of address space, beyond what the process has at its start
CODES = (0, 1, 2, 130)
LONG = (
    "words",
    "runs",
    "bootstrap",
    "retrain",
    "epochs",
    "finetune_epochs",
    "minutes",
    "device",
    "warmup_steps",
    "tensorboard",
)
"""Options of which a large value asks for long work, or which write elsewhere: only values that are no number."""


@dataclass
class Case:
    """A command, its standard input, and the places that must be left as they are."""

    arguments: list[str]
    stdin: bytes = b""
    full: bool = False
    kept: list[Path] = field(default_factory=list)
    out: Path | None = None
    sizes: bool = False  # options may ask for more memory than there is


class Hang(BaseException):
    """Raised by the alarm."""


def prepare(base: Path, bomb: int = 300 << 20) -> None:
    """The undamaged runs and files, once. Args: bomb: bytes that the bombs unpack to."""
    from gatedrnn.cli.main import main
    from gatedrnn.data import write_corpus

    write_corpus(base / "text", 1, train=60, valid=12, test=8)
    small = ["--model.embedding_size", "8", "--model.hidden_sizes", "[8, 8]", "--training.batch_size", "4"]
    small += ["--training.epochs", "1", "--training.device", "cpu", "--training.sequence_length", "10"]
    for name, cell, data in (
        ("word", "onlstm", {}),
        ("char", "gru", {"level": "char"}),
        ("subword", "lstm", {"level": "subword"}),
    ):
        sections = {"data": data, "model": {"cell": cell}, "training": {"seed": 1}}
        sections["model"] |= {"options": {"chunk_size": 4}} if cell == "onlstm" else {}
        sections["data"] |= {"vocabulary_size": 280} if name == "subword" else {"min_count": 1}
        (base / f"{name}.yaml").write_text(json.dumps(sections))
        where = ["--config", str(base / f"{name}.yaml"), "--data", str(base / "text"), "--out", str(base / name)]
        assert main(["train", *where, *small]) == 0, name
    assert main(["compress", str(base / "word"), "--method", "int8", "--out", str(base / "small")]) == 0
    lines = (base / "text" / "valid.txt").read_text().splitlines()
    pairs = [
        {"good": line, "bad": " ".join(reversed(line.split())), "phenomenon": f"p{k % 2}"}
        for k, line in enumerate(lines)
    ]
    pairs += [
        {"sentence_good": line, "sentence_bad": "the pilot", "UID": "u", "one_prefix_prefix": "the"}
        for line in lines[:2]
    ]
    (base / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (base / "long.txt.gz").write_bytes(gzip.compress(b"a" * bomb, 1))
    (base / "long.trees.gz").write_bytes(gzip.compress(b"(" * bomb, 1))


def draw(random: Random, base: Path, folder: Path) -> Case:
    """A case of language models, its damaged files written into `folder`."""
    kinds = {
        _damaged_run: 4,
        _damaged_text: 3,
        _damaged_corpus: 2,
        _damaged_trees: 3,
        _damaged_pairs: 2,
        _damaged_config: 4,
        _odd_options: 6,
    }
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    case = kind(random, base, folder)
    if random.random() < 0.3:
        case.arguments.append("--json")
    case.full = case.full or random.random() < 0.03
    return case


def _readers(random: Random, run: Path, base: Path, folder: Path, text: str | None = None) -> Case:
    """A command that reads a run."""
    text = text or str(base / "text" / "test.txt")
    out = folder / "out"
    command = random.choice(
        [
            ["evaluate", str(run), "--data", text],
            ["evaluate", str(run), "--data", text, "--reset"],
            ["evaluate", str(run), "--data", text, "--cache", "--dynamic"],
            ["surprisal", str(run), text],
            ["surprisal", str(run), text, "--carried", "--tokens"],
            ["parse", str(run), text],
            ["parse", str(run), text, "--svg", str(out)],
            ["compress", str(run), "--method", "int8", "--data", text, "--out", str(out)],
            ["gates", str(run), "--data", text, "--out", str(out)],
        ]
    )
    return Case(command, kept=[run], out=out if command[0] == "compress" else None)


def _damaged_run(random: Random, base: Path, folder: Path) -> Case:
    name = random.choice(("word", "word", "word", "char", "subword", "small"))
    run = copied(base / name, folder / "run")
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith("."))
    whole = random.choice([path for path in files if path.parent.name != "tokens"] if random.random() < 0.8 else files)
    if random.random() < 0.1:
        replaced(random, whole)
    else:
        whole.write_bytes(damaged(random, whole.read_bytes(), whole.suffix))
    if whole.parent != run or whole.name == "metrics.jsonl" or random.random() < 0.2:
        more = ["--training.epochs", "2", "--training.minutes", "1e-4"]
        return Case(["train", "--out", str(run), "--resume", *more[: random.choice((0, 2, 4))]], sizes=True)
    others: list[list[str]] = [
        ["generate", str(run), "--words", "5"],
        ["eval-syntax", str(run), "--pairs", str(base / "pairs.jsonl")],
        ["eval-parsing", str(run), "--treebank", str(base / "text" / "test.trees")],
        ["gates", str(run), "--sentence", "the pilot sleeps", "--out", str(folder / "out")],
        ["compress", str(run), "--method", "svd", "--rank", "2", "--retrain", "1", "--out", str(folder / "out")],
    ]
    case = Case(random.choice(others), kept=[run]) if random.random() < 0.5 else _readers(random, run, base, folder)
    case.sizes = True
    return case


def _text(random: Random, base: Path, folder: Path, source: Path, stem: str) -> tuple[str, bytes]:
    """A damaged file, and what standard input then holds: the argument that names one of both."""
    if random.random() < 0.03:
        return str(base / ("long.trees.gz" if source.suffix == ".trees" else "long.txt.gz")), b""
    raw = damaged(random, source.read_bytes(), source.suffix)
    if random.random() < 0.05:
        raw = raw.replace(b"\n", b" ") * random.choice((1, 10, 100))
    path = folder / f"{stem}{source.suffix}"
    if random.random() < 0.15:
        path = path.with_name(path.name + ".gz")
        raw = packed(random, raw)
    path.write_bytes(raw)
    if random.random() < 0.05:
        replaced(random, path)
    return ("-", raw) if random.random() < 0.15 else (str(path), b"")


def _damaged_text(random: Random, base: Path, folder: Path) -> Case:
    text, stdin = _text(random, base, folder, base / "text" / "test.txt", "input")
    case = _readers(random, base / random.choice(("word", "word", "char", "subword")), base, folder, text)
    case.stdin = stdin
    return case


def _damaged_corpus(random: Random, base: Path, folder: Path) -> Case:
    text = copied(base / "text", folder / "text")
    name = random.choice(("train.txt", "valid.txt", "test.txt"))
    path, _ = _text(random, base, text, text / name, name.removesuffix(".txt"))
    if path.endswith(".gz"):
        (text / name).unlink(missing_ok=True)
        if Path(path).parent != text:
            (text / f"{name}.gz").symlink_to(path)
    out = folder / "out"
    how = ["--data", str(text), "--out", str(out), "--training.minutes", "1e-4", "--training.device", "cpu"]
    return Case(
        ["train", "--config", str(base / f"{random.choice(('word', 'char', 'subword'))}.yaml"), *how, *_SMALL], out=out
    )


_SMALL = ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--training.batch_size", "4"]


def _damaged_trees(random: Random, base: Path, folder: Path) -> Case:
    trees, stdin = _text(random, base, folder, base / "text" / "test.trees", "gold")
    whole = str(base / "text" / "valid.trees")
    which = random.choice(
        [["--baseline", "right"], [str(base / "word")], [str(base / "word"), "--select", "layer=auto", "--dev", trees]]
    )
    more = random.choice(
        [[], ["--skip-bad"], ["--skip-bad", "--by-length"], ["--words", "alnum"], ["--out", str(folder / "out")]]
    )
    return Case(["eval-parsing", "--treebank", whole if "--dev" in which else trees, *which, *more], stdin)


def _damaged_pairs(random: Random, base: Path, folder: Path) -> Case:
    pairs, stdin = _text(random, base, folder, base / "pairs.jsonl", "pairs")
    more = random.choice(
        [[], ["--method", "prefix"], ["--unknown", "unk"], ["--out", str(folder / "out")], ["--append", "."]]
    )
    run = str(base / random.choice(("word", "word", "char", "subword")))
    return Case(["eval-syntax", run, "--pairs", pairs, *more], stdin)


def _damaged_config(random: Random, base: Path, folder: Path) -> Case:
    source = random.choice((base / "word" / "config.yaml", base / "word.yaml", base / "char.yaml"))
    path = folder / "config.yaml"
    path.write_bytes(damaged(random, source.read_bytes(), ".yaml"))
    if random.random() < 0.05:
        replaced(random, path)
    stdin = path.read_bytes() if path.is_file() and random.random() < 0.1 else b""
    out = folder / "out"
    short = [
        "--training.epochs",
        "1",
        "--training.finetune_epochs",
        "0",
        "--training.minutes",
        "1e-4",
        "--training.device",
        "cpu",
    ]
    where = ["--data", str(base / "text"), "--out", str(out)]
    config = "-" if stdin else str(path)
    return Case(["train", "--config", config, *where, *short], stdin, out=out, sizes=True)


def _odd_options(random: Random, base: Path, folder: Path) -> Case:
    from gatedrnn.cli.main import build_parser

    out, text, run = (
        folder / "out",
        str(base / "text" / "test.txt"),
        str(base / random.choice(("word", "word", "char", "subword"))),
    )
    commands = {
        "train": ["--config", str(base / "word.yaml"), "--data", str(base / "text"), "--out", str(out)],
        "evaluate": [run, "--data", text],
        "surprisal": [run, text],
        "generate": [run, "--words", "5"],
        "parse": [run, text],
        "eval-parsing": [run, "--treebank", str(base / "text" / "test.trees")],
        "eval-syntax": [run, "--pairs", str(base / "pairs.jsonl")],
        "gates": [run, "--sentence", "the pilot sleeps", "--out", str(out)],
        "explain": ["gru"],
        "compress": [run, "--method", "int8", "--data", text, "--out", str(out)],
        "bench": ["--shape", "H4-B2-T3", "--cell", "rnn", "--runs", "1"],
    }
    weights = [8, 3, 2, 2, 2, 3, 2, 1, 0.3, 4, 0.3]
    command = random.choices(list(commands), weights)[0]
    arguments = [command, *commands[command]]
    children: Any = build_parser()._subcommands_action.choices
    actions = [a for a in children[command]._actions if a.option_strings and a.dest not in ("help", "json", "config")]
    for action in random.sample(actions, min(len(actions), random.choice((1, 1, 2, 3)))):
        option = action.option_strings[0]
        if option.endswith(".help") or option.startswith("--print"):
            continue
        arguments += [option] if action.nargs == 0 else _valued(random, option, action, base)
    if random.random() < 0.05:
        arguments.insert(
            random.randint(0, len(arguments)),
            random.choice(["--", "-", "", "--x", "--=", "-1", "\udcff", "@f", "--json=1"]),
        )
    if command == "train":
        arguments += ["--training.epochs", "1", "--training.minutes", "1e-4", "--training.device", "cpu"]
        arguments += [] if random.random() < 0.3 else _SMALL[:4]
    return Case(arguments, out=out if command in ("train", "compress") else None, sizes=True)


def _valued(random: Random, option: str, action: Any, base: Path) -> list[str]:
    """An option and its value: one of its choices, a usual one, or an odd one."""
    drawn: Any = value(random)
    if action.choices and random.random() < 0.5:
        drawn = random.choice(list(action.choices))
    elif random.random() < 0.2:
        drawn = random.choice(
            [
                "1",
                "2",
                "0.5",
                "true",
                "[8]",
                "mean",
                "word",
                "sgd",
                "input,forget",
                "input=2",
                "2",
                "[",
                "!!int x",
                "{a",
            ]
        )
    text = drawn if isinstance(drawn, str) else json.dumps(drawn, default=str)
    text = text.replace("\0", "x")
    if option.endswith(LONG) and text.lstrip("+-").replace(".", "").replace("e", "").isdigit() and float(text) > 3:
        text = "2"
    if option in ("--out", "--svg", "--data.folder", "--data") and (text.startswith(("/", "..")) or text in ("x", "7")):
        text = str(base / "text" / "test.txt")  # a file; nothing is written outside of the case's folder
    return [f"{option}={text}"] if random.random() < 0.7 else [option, text]


def judged(case: Case, folder: Path) -> str:
    """Run a case in this process: what is wrong, or nothing."""
    before = {path: _content(path) for path in case.kept}
    code, out, err, problem = _called(case)
    if problem:
        return problem
    lines = err.splitlines()
    if code not in CODES:
        return f"exit code {code!r}"
    if code and (not lines or not lines[-1].startswith("gatedrnn: ") or len(lines[-1]) > 1200):
        return f"exit code {code}, and standard error ends with {(lines or ['nothing'])[-1][:200]!r}"
    strange = [line for line in lines if not line.startswith("gatedrnn: ")] if code else []
    if strange and case.arguments[0] != "train":
        return f"standard error has {strange[0][:200]!r}"
    if code and lines[-1].startswith("gatedrnn: memory: ") and not case.sizes:
        return "memory without bounds"
    if code == 0 and "--json" in case.arguments and not case.full:
        wrong = _no_json(out, case.arguments[0])
        if wrong:
            return wrong
    changed = [path for path, content in before.items() if _content(path) != content]
    if changed:
        return f"changed its input {changed[0].name}"
    left = [path for path in folder.rglob(".*") if path.is_file() and path.name != ".lock"]
    if left:
        return f"left a temporary file {left[0].name}"
    return _half_written(case.out) if code and case.out is not None else ""


def _half_written(out: Path) -> str:
    if not (out.is_dir() and any(out.iterdir())):
        return ""
    from gatedrnn.core.errors import GatedRNNError
    from gatedrnn.training.run import load_run

    try:
        load_run(out, None)
    except GatedRNNError as error:
        return f"left a run that cannot be loaded: {str(error)[:200]}"
    return ""


def _no_json(out: str, command: str) -> str:
    def constant(name: str) -> None:
        raise ValueError(f"{name} in JSON")

    try:
        for text in out.splitlines() if command in ("parse", "surprisal", "translate") else [out]:
            json.loads(text, parse_constant=constant)
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def _content(path: Path) -> str:
    """A hash of a folder's files."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if not file.is_symlink() and file.is_file() and file.name != ".lock":
            total.update(f"{file.relative_to(path)}\n".encode() + file.read_bytes())
    return total.hexdigest()


def _called(case: Case) -> tuple[Any, str, str, str]:
    """Exit code, standard output and error, and an exception that got through."""
    from gatedrnn.cli.main import main

    shown, said = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    said.reconfigure(errors="backslashreplace")
    stdin, problem, code = sys.stdin, "", None
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(Path("/dev/full").open("w")) if case.full else None
        stack.callback(setattr, sys, "stdin", stdin)
        sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin))
        stack.enter_context(contextlib.redirect_stdout(full or shown))
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.suppress(OSError))  # closing /dev/full
        signal.signal(signal.SIGPROF, _alarm)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            code = main(case.arguments)
        except SystemExit as stop:
            code = stop.code
        except Hang:
            problem = "hang"
        except BaseException as error:  # what this program looks for
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "/gatedrnn/" in f.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
            problem = f"{type(error).__name__} in {place}: {str(error)[:150]!r}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (shown, said)]  # type: ignore[attr-defined]
    return code, *texts, problem


def _alarm(number: int, frame: Any) -> None:
    raise Hang


def one(seed: int, number: int, base: Path) -> tuple[str, list[str]]:
    """Case `number`: what is wrong, and its arguments; a negative one is a case of `fuzz_tasks`."""
    folder = Path(tempfile.mkdtemp(prefix=f"case{number}-", dir=base / "cases"))
    kept = Path.cwd()
    try:
        os.chdir(folder)
        from . import fuzz_tasks  # which uses this file

        case = (fuzz_tasks.draw if number < 0 else draw)(Random(f"{seed}/{number}"), base, folder)
        return judged(case, folder), [argument[:300] for argument in case.arguments]
    finally:
        os.chdir(kept)
        shutil.rmtree(folder, ignore_errors=True)


def interrupted(*_: Any) -> None:
    """Instead of the trainings of a sweep."""
    raise KeyboardInterrupt


def _work(connection: Any, base: Path) -> None:
    """The process of the cases: gets (seed, number), sends what `one` finds."""
    import torch

    import gatedrnn.cli.commands.sweep
    import gatedrnn.plots.trees

    torch.set_num_threads(1)
    gatedrnn.plots.trees.KINDS = ("svg",)  # figures take most of the time
    gatedrnn.cli.commands.sweep.run_jobs = interrupted
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
    with contextlib.suppress(EOFError):
        while True:
            connection.send(one(*connection.recv(), base))


class Worker:
    """A process of cases, started again after a crash."""

    def __init__(self, base: Path) -> None:
        self.base, self.process = base, None

    def run(self, seed: int, number: int) -> tuple[str, list[str]]:
        """What `one` finds, or how the process died."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_work, args=(theirs, self.base), daemon=True)
            self.process.start()
            theirs.close()
        try:
            self.connection.send((seed, number))
            if self.connection.poll(WAITED_SECONDS):
                return self.connection.recv()
            found = "hang that no alarm ends"
        except (EOFError, OSError):
            self.process.join(5)
            found = f"the process died: {self.process.exitcode}"
        self.process.kill()
        self.process = None
        return found, []


def fuzz(
    seed: int, cases: range, base: Path, minutes: float = 1e9, worker: Worker | None = None
) -> dict[str, list[int]]:
    """Cases by what was found wrong; each finding is printed when it comes."""
    found: dict[str, list[int]] = {}
    (base / "cases").mkdir(exist_ok=True)
    end, codes = time.monotonic() + 60 * minutes, Counter[str]()
    for number in cases:
        if time.monotonic() > end:
            print(f"stopped before case {number}", flush=True)
            break
        began = time.monotonic()
        problem, arguments = worker.run(seed, number) if worker else one(seed, number, base)
        codes[arguments[0] if arguments else "?"] += 1
        if problem:
            found.setdefault(problem, []).append(number)
            print(
                f"case {number} ({time.monotonic() - began:.1f} s): {problem}\n    {' '.join(arguments)!r}", flush=True
            )
    print(f"{sum(codes.values())} cases ({dict(codes)}), {sum(map(len, found.values()))} findings", flush=True)
    return found


def main() -> int:
    """The command line."""
    from . import fuzz_tasks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--tasks", action="store_true", help="runs and texts of the other tasks: `fuzz_tasks`")
    parser.add_argument("--case", type=int, action="append", help="only this one, in this process")
    parser.add_argument("--base", type=Path, help="where prepared runs are kept between calls [a new folder]")
    options = parser.parse_args()
    base = (options.base or Path(tempfile.mkdtemp(prefix="fuzz-"))).resolve()
    if not (base / "long.trees.gz").exists():
        base.mkdir(exist_ok=True)
        prepare(base)
        fuzz_tasks.prepare(base)
    numbers = range(-1, -options.cases - 1, -1) if options.tasks else range(options.cases)
    worker = None if options.case else Worker(base)
    return int(bool(fuzz(options.seed, options.case or numbers, base, options.minutes, worker)))


if __name__ == "__main__":
    sys.exit(main())
