"""Damaged runs and texts of translation, logical inference and grammars, and sweeps: more cases of `fuzz_files`.

`python -m tests.property.fuzz_files --tasks --cases 500`
"""

import json
from pathlib import Path
from random import Random

from .damage import copied, damaged, packed, replaced
from .fuzz_files import Case

_RUN = ["--training.epochs", "1", "--training.device", "cpu", "--training.batch_size", "4"]
_SIZES = {
    "translation": ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--model.decoder_sizes", "[8]"],
    "inference": ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--model.options.chunk_size", "4"],
    "grammar": ["--model.nonterminals", "3", "--model.preterminals", "4", "--model.state_size", "8"],
}
_DATA = {"translation": ["--data.source", "de", "--data.target", "en", "--data.vocabulary_size", "280"]}
_LONGEST = 2000  # bytes of a line: a translation's time grows with the square
_SPLITS = ("train", "valid", "test")


def prepare(base: Path) -> None:
    """The undamaged runs and texts, beside those of `fuzz_files.prepare`."""
    from gatedrnn.cli.main import main
    from gatedrnn.data.logic import make_pairs, write_pairs

    sides, pairs = base / "translation-text", base / "inference-text"
    for folder in (sides, pairs):
        folder.mkdir()
    for number, split in enumerate(_SPLITS):
        lines = (base / "text" / f"{split}.txt").read_text().splitlines()[:30]
        (sides / f"{split}.en").write_text("\n".join(lines) + "\n")
        (sides / f"{split}.de").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
        write_pairs(pairs / f"{split}.tsv", make_pairs(30, number, range(3)))
    for task in _SIZES:
        assert main(["train", *_given(base, task), "--out", str(base / task)]) == 0, task


def _given(base: Path, task: str, text: Path | None = None) -> list[str]:
    text = text or (base / "text" if task == "grammar" else base / f"{task}-text")
    return ["--task", task, "--data", str(text), *_SIZES[task], *_DATA.get(task, []), *_RUN]


def draw(random: Random, base: Path, folder: Path) -> Case:
    """A case, its damaged files written into `folder`."""
    kinds = {_damaged_run: 6, _damaged_text: 4, _damaged_input: 3, _damaged_sweep: 2, _damaged_folder: 1}
    case = random.choices(list(kinds), list(kinds.values()))[0](random, base, folder)
    case.arguments += ["--json"] if random.random() < 0.3 and case.arguments[0] != "accept" else []
    case.full = random.random() < 0.03
    return case


def _readers(task: str, run: Path, base: Path, out: Path) -> list[list[str]]:
    """Commands that read a run of the task."""
    compressed = ["compress", str(run), "--method", "int8", "--out", str(out)]
    if task == "translation":
        text = base / "translation-text"
        return [
            ["translate", str(run), str(text / "test.de"), "--beam", "2", "--scores"],
            ["evaluate", str(run), "--data", str(text / "test"), "--beam", "1"],
            [*compressed, "--data", str(text / "test")],
            ["gates", str(run), "--sentence", "der kater ||| the cat", "--out", str(out)],
        ]
    if task == "inference":
        pairs = str(base / "inference-text" / "test.tsv")
        return [["evaluate", str(run), "--data", pairs], [*compressed, "--data", pairs]]
    text = base / "text"
    return [
        ["parse", str(run), str(text / "test.txt")],
        ["evaluate", str(run), "--data", str(text / "test.txt")],
        ["eval-parsing", str(run), "--treebank", str(text / "test.trees")],
        ["parse", str(run), str(base / "word"), str(text / "test.txt")],
    ]


def _damaged_run(random: Random, base: Path, folder: Path) -> Case:
    task = random.choice(list(_SIZES))
    run = copied(base / task, folder / "run")
    _damage(random, random.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.name[0] != ".")))
    if random.random() < 0.3:
        return Case(["train", "--out", str(run), "--resume", "--training.epochs", "2"], sizes=True)
    return Case(random.choice(_readers(task, run, base, folder / "out")), kept=[run], sizes=True)


def _damage(random: Random, path: Path) -> None:
    if random.random() < 0.1:
        replaced(random, path)
    else:
        path.write_bytes(damaged(random, path.read_bytes(), path.suffix))


def _damaged_text(random: Random, base: Path, folder: Path) -> Case:
    """A training on a text of which a file is damaged."""
    task = random.choice(("translation", "inference"))
    text = copied(base / f"{task}-text", folder / "text")
    file = random.choice(sorted(text.iterdir()))
    _damage(random, file)
    if random.random() < 0.2 and file.is_file():
        (text / f"{file.name}.gz").write_bytes(packed(random, file.read_bytes()))
        file.unlink()
    out = folder / "out"
    return Case(["train", *_given(base, task, text), "--out", str(out)], out=out)


def _damaged_input(random: Random, base: Path, folder: Path) -> Case:
    """A text that a whole run reads."""
    task = random.choice(list(_SIZES))
    command = random.choice(_readers(task, base / task, base, folder / "out"))
    places = [k for k, part in enumerate(command) if Path(part).is_file()]
    if places:
        source = Path(command[places[-1]])
        path = folder / f"input{source.suffix}"
        lines = damaged(random, source.read_bytes(), source.suffix).split(b"\n")
        path.write_bytes(b"\n".join(line[:_LONGEST] for line in lines))
        command[places[-1]] = str(path)
    return Case(command, kept=[base / task])


def _damaged_sweep(random: Random, base: Path, folder: Path) -> Case:
    """A sweep of a damaged configuration, or one that goes on with damaged results, as far as its first training."""
    config, out = folder / "c.yaml", folder / "sweep"
    config.write_bytes((base / "word" / "config.yaml").read_bytes())
    settings = {"config": {}, "over": ["training.seed=1,2"], "minutes": 1.0, "data": str(base / "text"), "processes": 2}
    done = {"round-1/trial-1": {"round": 1, "trial": 1, "minutes": 1.0, "score": 7.5}}
    out.mkdir()
    results = out / "sweep.json"
    results.write_text(json.dumps({"settings": settings, "results": done}))
    _damage(random, random.choice((config, results)))
    given = ["--over", "training.seed=1,2", "--minutes", "1", "--data", str(base / "text")]
    return Case(
        ["sweep", str(config), *given, "--out", str(out if random.random() < 0.7 else folder / "new")], sizes=True
    )


def _damaged_folder(random: Random, base: Path, folder: Path) -> Case:
    """A change that is accepted, or a folder of transformers that is taken back."""
    run = copied(base / random.choice(list(_SIZES)), folder / "run")
    _damage(random, random.choice(sorted(path for path in run.iterdir() if path.is_file() and path.name[0] != ".")))
    if random.random() < 0.5:
        return Case(["accept", str(run)])
    return Case(["import", str(run), "--out", str(folder / "out")], kept=[run], out=folder / "out", sizes=True)
