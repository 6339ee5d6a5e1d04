"""Every example runs as its user would run it."""

import json
from pathlib import Path

import pytest
from scripts import ROOT, run_script

EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: str) -> str:
    code, out, err = run_script(EXAMPLES / script, *arguments)
    assert code == 0, err
    return out


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("drop_in.py", "master_forget"),
        ("torch_weights.py", "largest difference"),
        ("train_tiny.py", "(X "),
        ("compress.py", "factors"),
    ],
)
def test_example(script: str, expected: str):
    assert expected in run(script)


def test_draw_sentence(tmp_path: Path):
    sentence = {"words": ["a", "b", "c"], "gold": [["S", [0, 3]]], "induced": [[0, 3], [1, 3]], "f1": 0.0}
    (tmp_path / "sentences.json").write_text(
        json.dumps([sentence | {"gates": {"layer 1": [[0, 1], [0.2, 1], [0.5, 1]]}}])
    )
    run("draw_sentence.py", str(tmp_path), str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_examples_stay_short():
    assert all(len(path.read_text().splitlines()) <= 80 for path in EXAMPLES.glob("*.py"))
