"""Tests, speed and a short training on a GPU, as one Markdown report: `make gpu-check`, or `python benchmarks/gpu_check.py`.

--data DIR    text to train on [../shared/data/ptb-lm if it is there, else the built-in grammar]
--minutes N   of training [3]
--whole       the whole grid of shapes, hours, instead of a few
--out FILE    [gpu-report.md]
"""

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PTB = ROOT.parent / "shared" / "data" / "ptb-lm"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(PTB) if PTB.is_dir() else None)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--out", default="gpu-report.md")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: needs a GPU; got none that torch sees. Install a CUDA build of torch, or look at nvidia-smi.")
        return 1
    import triton

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    gpu = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
    report = Path(options.out)
    report.write_text(f"# GPU check\n\nCommit {commit.strip()}, {gpu}, {platform.platform()}.\n", encoding="utf-8")
    shapes = [] if options.whole else ["S1", "S2", "H2048-B64-T70", "H650-B20-T512", "H650-B1-T512-inference"]
    bench = [*(f"--shape={name}" for name in shapes), "--cell=onlstm", "--cell=lstm", "--runs=5"]
    with tempfile.TemporaryDirectory() as scratch:
        text = ["--data", str(Path(options.data).resolve())] if options.data else []
        train = ["train", "--config", "configs/ptb-onlstm.yaml", *text, "--out", f"{scratch}/run"]
        train += ["--training.device=cuda", "--training.precision=bf16-mixed", f"--training.minutes={options.minutes}"]
        commands = {
            "Tests": ["-m", "pytest", "-q", "-m", "gpu", "tests/parity"],
            "Speed": ["benchmarks/recurrence.py", "--device", "cuda", *bench],
            "Training": ["-m", "gatedrnn.cli.main", *train],
        }
        codes = [_section(report, title, command) for title, command in commands.items()]
        metrics = Path(scratch) / "run" / "metrics.jsonl"
        if metrics.is_file():
            with report.open("a", encoding="utf-8") as stream:
                stream.write(f"\n```json\n{metrics.read_text(encoding='utf-8')}```\n")
    print(f"written to {report}")
    return int(any(codes))


def _section(report: Path, title: str, command: list[str]) -> int:
    """Run a command, shown as it goes, and add what it printed to the report."""
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds, code = time.perf_counter() - began, process.returncode
    body = "".join(lines) if title == "Speed" else f"```text\n{''.join(lines)}```\n"
    with report.open("a", encoding="utf-8") as stream:
        stream.write(f"\n## {title}\n\n`python {' '.join(command)}`: {seconds:.0f} s, exit {code}\n\n{body}")
    return code


if __name__ == "__main__":
    sys.exit(main())
