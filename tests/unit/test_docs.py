"""The code that the documentation shows runs.

Every ```python block of docs/add-a-cell.md runs, concatenated into one script; in docs/quickstart.md those under a line
`<!-- runnable -->`, in one namespace; in README.md the first one.
"""

import re
from pathlib import Path

import pytest
import torch
from scripts import run_script

from gatedrnn.cells import CELLS
from gatedrnn.data import Vocabulary, read_treebank
from gatedrnn.data.characters import character_words
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.trees import gold_tree

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- runnable -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: str, *, marked: bool = False) -> list[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return [code for mark, code in BLOCK.findall(text) if mark or not marked]


def run_blocks(sources: list[str], name: str) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for number, source in enumerate(sources, 1):
        exec(compile(source, f"{name}, block {number}", "exec"), namespace)
    return namespace


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tiny untrained run where the pages expect one, `runs/my-text`."""
    folder = tmp_path / "runs" / "my-text"
    vocabulary = Vocabulary.build([["the", "old", "author"]], min_count=1)
    config = LanguageModelConfig(len(vocabulary), embedding_size=8, hidden_sizes=(8, 8), options={"chunk_size": 4})
    LanguageModel(config).save_pretrained(folder)
    vocabulary.save(folder / "vocabulary.json")
    monkeypatch.chdir(tmp_path)
    return folder


def test_add_a_cell_runs_as_one_script(tmp_path):
    script = tmp_path / "janet.py"
    script.write_text("\n\n".join(blocks("docs/add-a-cell.md")), encoding="utf-8")
    torch.manual_seed(0)
    try:
        code, _, err = run_script(script)
        assert code == 0, err
    finally:
        CELLS._entries.pop("janet", None)


def test_quickstart_runs(run_folder, capsys):
    sources = blocks("docs/quickstart.md", marked=True)
    assert len(sources) == 4
    torch.manual_seed(0)
    found = run_blocks(sources, "quickstart.md")
    assert found["output"].shape == (7, 3, 40)
    tree = capsys.readouterr().out.splitlines()[-1]
    assert re.sub(r"[(X )]+", " ", tree).split() == ["the", "old", "author", "laughs"]


def test_first_readme_block_runs(run_folder):
    sources = blocks("README.md")[:1]
    if not sources:
        pytest.skip("README.md shows no Python")
    run_blocks(sources, "README.md")


def test_layers_and_gates_blocks_run():
    for page in ("docs/layers.md", "docs/gates.md", "docs/evaluation.md", "docs/data.md"):
        for source in blocks(page):
            run_blocks([source], page)


def test_from_torch_runs_in_one_namespace():
    run_blocks(blocks("docs/from-torch.md"), "from-torch.md")


def test_a_new_language_splits_a_text_into_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nouns = ["Hunde", "Katzen", "Kinder", "Häuser", "Wiesen", "Bäume", "Straßen"]
    text = [f"Dr. Meier sah {a} und {b}. Die {b} sahen {c} an diesem Tag." for a in nouns for b in nouns for c in nouns]
    Path("raw.txt").write_text("\n".join(text * 4), encoding="utf-8")
    run_blocks(blocks("docs/new-language.md")[:1], "new-language.md")
    found = Path("german/train.txt").read_text(encoding="utf-8").splitlines()
    assert "Die Hunde sahen Katzen an diesem Tag." in found and "Dr. Meier sah Hunde und Katzen." in found


def test_a_new_language_without_spaces_keeps_its_words_as_gold_trees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"第{k}/m 次/q  看/v (报纸)/n 。/w 走/v" for k in range(3000)]
    Path("199801.txt").write_text("\n".join(lines), encoding="utf-8")
    run_blocks(blocks("docs/new-language.md")[1:2], "new-language.md")
    texts = Path("chinese/test.txt").read_text(encoding="utf-8").splitlines()
    trees = [gold_tree(tree, "alnum", character_words) for tree in read_treebank(Path("chinese/test.trees"))]
    assert len(texts) == len(trees) == 1000
    assert {text for text in texts if text != "走"} == {"".join(tree.words) + "。" for tree in trees if len(tree) > 1}
    assert {tree.labelled[-1][0] for tree in trees if len(tree) > 1} == {"n"}
