"""Bytes and perplexity of a run's graphs: `python benchmarks/onnx_int8.py RUN --data test.txt [--tokens 20000]`, as Markdown.

The run is exported as float32 and as int8. Each graph reads the first tokens of the text after `<eos>`, state carried.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from gatedrnn.export import onnx
from gatedrnn.training.run import load_run

WINDOW = 256  # tokens a call


def perplexity(path: Path, ids: np.ndarray) -> float:
    """Of ids after the first one, by a graph `sequence`, in one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = [each for each in session.get_inputs() if each.name not in ("tokens", "lengths")]
    states = {each.name: np.zeros((1, each.shape[1]), np.float32) for each in inputs}
    nats = 0.0
    for start in range(0, len(ids) - 1, WINDOW):
        targets = ids[start + 1 : start + 1 + WINDOW]
        tokens = ids[start : start + len(targets), None]
        values: Any = session.run(None, {"tokens": tokens, "lengths": np.array([len(tokens)])} | states)
        found = dict(zip(names, values, strict=True))
        logits = found["logits"][:, 0].astype(np.float64)
        nats += float((np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets]).sum())
        states = {name: found[f"{name}_out"] for name in states}
    return math.exp(nats / (len(ids) - 1))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", type=Path, required=True, help="text")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens to read [20000]")
    options = parser.parse_args()
    run, ids = load_run(options.run), [1]
    for line in options.data.read_text(encoding="utf-8").splitlines():
        ids += [*run.vocabulary.encode(run.vocabulary.tokens(line)), 1] if line.strip() else []
    print("| weights | bytes of `sequence.onnx` | perplexity |\n|---|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, int8 in (("float32", False), ("int8", True)):
            path = onnx(run.model, Path(folder) / name, int8=int8, only=["sequence"])["sequence"]
            found = perplexity(path, np.array(ids[: options.tokens + 1]))
            print(f"| {name} | {path.stat().st_size:,} | {found:.2f} |", flush=True)


if __name__ == "__main__":
    main()
