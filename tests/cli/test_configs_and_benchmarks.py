"""Every published configuration trains through the real command line; every benchmark runs."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scripts import ROOT, run_script
from terminal import works

from gatedrnn.cli.main import main
from gatedrnn.core.files import cache_folder
from gatedrnn.models import LanguageModel, PairClassifier, TranslationModel
from gatedrnn.sequence.backends.cpu.backend import Cpu
from gatedrnn.studies.speed.shapes import PARTS, Shape, gflop
from gatedrnn.tasks import TASKS
from gatedrnn.training.config import RunConfig, read_run_config

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PUBLISHED = {
    "language_modelling": LanguageModel,
    "inference": lambda model: PairClassifier(replace(model, classes=7)),
    "translation": lambda model: TranslationModel(replace(model, target_size=100)),
}
"""What is trained, by task, of a configuration that knows its vocabulary."""


def data_for(config: RunConfig, folder: Path) -> Path:
    """A folder with a few lines of what a configuration's task reads."""
    task, data = config.task, config.data
    folder.mkdir()
    if task == "language_modelling":  # 20 × 35 tokens are one window: two steps
        lines = {f"{split}.txt": "the old pilot sleeps\n" * 280 for split in ("train", "valid")}
    elif task == "grammar":
        lines = {f"{split}.txt": "the old pilot sleeps\n" * 40 for split in ("train", "valid")}
    elif task == "translation":
        sides = {data.source: "der alte pilot schläft .", data.target: "the old pilot sleeps ."}
        files = {f".{code}": line for code, line in sides.items()}
        if data.columns:
            files = {".tsv": "\t".join(sides[column] for column in data.columns)}
        lines = {f"{split}{ending}": f"{line}\n" * 40 for split in ("train", "val") for ending, line in files.items()}
    else:
        lines = {f"{split}.tsv": "1\t<\t( a ( and b ) )\ta\n" * 40 for split in ("train", "dev")}
    for name, text in lines.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config_trains(config: Path, tmp_path: Path, capsys):
    read = read_run_config(config, written=True)
    task = read.task
    text, out = str(data_for(read, tmp_path / "text")), str(tmp_path / "run")
    options = ["--training.epochs", "1", "--training.finetune_epochs", "0", "--training.device", "cpu"]
    if max(getattr(read.model, "hidden_sizes", [0])) > 100:  # large: build it, and train a small one
        PUBLISHED[task](replace(read.model, vocabulary_size=100))
        options += ["--model.embedding_size", "40"]
        for name in {"hidden_sizes", "decoder_sizes"} & vars(read.model).keys():
            layers = len(getattr(read.model, name))
            options += [f"--model.{name}", str([80] * (layers - 1) + [40])]
    assert main(["train", "--config", str(config), "--data", text, "--out", out, *options]) == 0
    assert f"best valid {TASKS[task].measure}" in capsys.readouterr().out


def test_tensorboard_has_every_epoch(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard")
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\n" * 280)
    options = [
        "--config",
        str(ROOT / "configs" / "gum-small.yaml"),
        "--training.epochs",
        "2",
        "--training.device",
        "cpu",
    ]
    run = tmp_path / "run"
    assert (
        main(["train", *options, "--data", str(tmp_path / "text"), "--out", str(run), "--training.tensorboard", "true"])
        == 0
    )
    found = events.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [(scalar.step, scalar.value) for scalar in found.Scalars("valid_perplexity")]
    assert logged == [(line["step"], pytest.approx(line["valid_perplexity"])) for line in lines]


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_no_script_has_the_name_of_a_module_that_python_imports(folder):
    """Its folder comes first when one of them is run. `compression` is Python's from 3.14 on."""
    names = {path.stem for path in (ROOT / folder).glob("*.py")}
    assert names and not names & (sys.stdlib_module_names | {"compression", "torch", "numpy", "numba", "gatedrnn"})


def test_recurrence_benchmark_runs():
    code, out, err = run_benchmark("recurrence.py", "--runs", "1", "--cell", "lstm", "--shape", "H64-B4-T8")
    assert code == 0, err
    assert "| torch.nn.LSTM | torch |" in out and "| lstm | reference |" in out


def test_bench_json_has_every_row(capsys):
    assert main(["bench", "--shape", "ragged", "--cell", "gru", "--runs", "1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    rows = {(row["name"], row["backend"]): row for row in result["rows"]}
    assert {("torch.nn.LSTM", "torch"), ("torch.nn.GRU", "torch"), ("gru", "reference")} <= set(rows)
    lengths = [10, 70]
    assert 32 * lengths[0] <= result["tokens"] <= 32 * lengths[1]
    gflop = 3 * 2 * result["tokens"] * 3 * 256 * (256 + 256) / 1e9
    assert rows["gru", "reference"]["gflop"] == pytest.approx(gflop)
    assert all(row["seconds"] > 0 for row in rows.values())


def test_parts_of_a_step_have_the_arithmetic_of_their_own_widths():
    shape = Shape((3, 5, 7), 1, 11, 2)
    of_input, of_hidden = (2 * 22 * 4 * (5 * a + 7 * b) / 1e9 for a, b in ((3, 5), (5, 7)))
    expected = of_input, of_hidden, of_hidden, of_input + of_hidden, of_input
    assert [gflop("lstm", shape, part) for part in PARTS.values()] == pytest.approx(expected)
    assert gflop("lstm", shape) == pytest.approx(sum(expected))
    assert gflop("lstm", replace(shape, training=False)) == pytest.approx(of_input + of_hidden)


def test_bench_prints_no_speed_of_a_wrong_result(capsys, monkeypatch):
    right = Cpu.run

    def wrong(self, request):
        result = right(self, request)
        return replace(result, output_TBH=result.output_TBH * 1.01)

    monkeypatch.setattr(Cpu, "run", wrong)
    assert main(["bench", "--cell", "rnn", "--runs", "1"]) == 1
    shown = capsys.readouterr()
    assert "must agree with the reference" in shown.err and "| ms |" not in shown.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shape", "S9"], "'S9'"),
        (["--cell", "lsmt"], "'lsmt'"),
        (["--runs", "0"], "got 0"),
        (["--backend", "gpu"], "'gpu'"),
        (["--device", "tpu"], "'tpu'"),
        (["--shape", "H4-B2"], "one layer as H1150-B20-T70"),
    ],
)
def test_bench_names_a_wrong_option(options, told, capsys):
    assert main(["bench", *options]) == 1
    assert told in capsys.readouterr().err


def test_bench_of_one_layer_and_of_the_interpreted_gpu_kernels(capsys, monkeypatch):
    pytest.importorskip("triton", minversion="3.4", reason="needs Triton 3.4 or later")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    options = ["--shape", "H4-B2-T2", "--cell", "lstm", "--runs", "1", "--json"]
    assert main(["bench", *options, "--backend", "triton", "--backend", "reference"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert {("lstm", "triton"), ("lstm", "triton, bf16")} <= {(row["name"], row["backend"]) for row in result["rows"]}
    assert result["sizes"] == [4, 4] and result["training"] and result["tokens"] == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_benchmarks_say_so(capsys):
    assert main(["bench", "--device", "cuda"]) == 1
    assert "torch finds no GPU" in capsys.readouterr().err
    code, out, _ = run_benchmark("gpu_check.py")
    assert code == 1 and "needs a GPU; got none" in out


def test_room_on_chips_is_told():
    code, out, err = run_benchmark("onchip.py")
    assert code == 0, err
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert out and all(line in page for line in out.splitlines())


def test_curves_are_drawn(tmp_path):
    line = {"seconds": 60.0, "valid_perplexity": 100.0, "train_perplexity": 120.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    code, _, err = run_benchmark("curves.py", "--out", str(tmp_path / "curves.png"), f"LSTM={tmp_path}")
    assert code == 0, err
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_steps_of_a_grammar_are_measured():
    sizes = ["--symbols", "3", "4", "--words", "5", "--vocabulary", "20", "--rounds", "1"]
    code, out, err = run_benchmark("grammar.py", *sizes)
    assert code == 0, err
    assert out.splitlines()[-1].startswith("(3, 4)    5 ")


def test_a_second_process_is_measured(tmp_path, monkeypatch, capsys):
    """Its trainings run here, by one process each: of torchrun, only what it is given is tested."""
    launchers = []

    def run(command, *, env, check, stdout):
        options = command.index("train")
        *launcher, module = command[1:options]
        launchers.append(launcher)
        assert module == "gatedrnn.cli.main" and env["OMP_NUM_THREADS"] == "1" and check
        works(*command[options:])

    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text("the old pilot sleeps\n" * 1120)
    tiny = "model: {embedding_size: 8, hidden_sizes: [8], options: {chunk_size: 4}}\ntraining: {batch_size: 20}\n"
    (tmp_path / "tiny.yaml").write_text(tiny)
    how = ("--data", tmp_path, "--config", tmp_path / "tiny.yaml", "--minutes", "0.005", "--parameters", "25000000")
    monkeypatch.setattr(sys, "argv", ["scaling.py", *map(str, how)])
    scaling = benchmark("scaling")
    monkeypatch.setattr(scaling, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))
    scaling.main()
    assert launchers == [["-m"], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[:2] for row in rows[1:3]] == [["1", "20"], ["2", "40"]] and rows[4][2] == "83 %"
    for _, batch, speed, milliseconds in rows[1:3]:
        step = 1000 * int(batch) * 35 / float(speed.replace(",", ""))
        assert step > 0 and float(milliseconds) == pytest.approx(step, abs=0.6)


def test_compile_benchmark(tmp_path, monkeypatch, capsys):
    """What its processes do is done here, with kernels that are kept; the table gets other numbers, to tell its columns apart."""
    asked = []

    def run(command, *, env, **how):
        assert not [*Path(env["XDG_CACHE_HOME"]).iterdir()] and "NUMBA_CACHE_DIR" not in env
        (tmp_path / "code.py").write_text(command[2])
        code, out, err = run_script(tmp_path / "code.py", *command[3:])
        assert code == 0, err
        seconds = [float(number) for number in out.split()]
        assert len(seconds) == len(command[3:]) and all(0 <= number < 600 for number in seconds)
        asked.append(command[3:])
        return SimpleNamespace(stdout="".join(f"{len(asked)}.{place}\n" for place in range(len(seconds))))

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache_folder().parent))
    monkeypatch.setattr(sys, "argv", ["compile.py", "rnn", "lstm"])
    compiled = benchmark("compile")
    monkeypatch.setattr(compiled, "subprocess", SimpleNamespace(run=run))
    compiled.main()
    assert asked == [["rnn", "lstm"], ["rnn"], ["lstm"]]
    _, rnn, lstm = (line.split() for line in capsys.readouterr().out.splitlines())
    assert rnn == ["rnn", "2.0", "s", "1.0", "s"] and lstm == ["lstm", "3.0", "s", "1.1", "s"]


def benchmark(name):
    """A benchmark as a module, whose parts can be replaced."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_benchmark(name, *options):
    return run_script(ROOT / "benchmarks" / name, *options)
