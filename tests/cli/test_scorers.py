"""An exported run in minicons and in `lm-eval --model hf`: the numbers of `surprisal` and of `eval-syntax`."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml
from terminal import record, records, works

from gatedrnn.data import agreement_pairs

LINES = ["the pilot laughs", "Mary thinks that the zebra sleeps", "the old pilot , he laughs"]


def exported(levels, name, folder):
    works("export", levels / name, "--to", "hf", "--out", folder / "hf")
    return str(folder / "hf")


@pytest.mark.parametrize("name", ["run", "char", "subword"])
def test_minicons_gives_the_bits_of_surprisal(levels, tmp_path, name):
    scorer = pytest.importorskip("minicons.scorer", reason="no minicons")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import gatedrnn.hf  # noqa: F401 - the Auto classes know the model

    folder = exported(levels, name, tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    asked = scorer.IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    words = asked.word_score_tokenized(LINES, tokenize_function=str.split, surprisal=True, base_two=True)
    tokens = asked.token_score(LINES, surprisal=True, base_two=True)
    for row, found in zip(words, records("surprisal", levels / name, tmp_path / "a.txt"), strict=True):
        assert [word for word, _ in row] == found["words"][:-1]
        assert [bits for _, bits in row] == pytest.approx(found["surprisal_bits"][:-1], abs=1e-5)
    for row, found in zip(tokens, records("surprisal", levels / name, tmp_path / "a.txt", "--tokens"), strict=True):
        (first, bits), *rest = row
        assert (first, bits) == ("<eos>", 0.0)  # what precedes a sentence
        assert [bits for _, bits in rest] == pytest.approx(found["surprisal_bits"][:-1], abs=1e-5)


@pytest.fixture(scope="module")
def task():
    """The task that the page shows, as text."""
    page = Path(__file__).parents[2] / "docs" / "huggingface.md"
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return block


@pytest.mark.parametrize("name", ["run", "char", "subword"])
def test_choices_of_the_task_end_in_eos(levels, tmp_path, task, name):
    jinja2 = pytest.importorskip("jinja2", reason="no Jinja")
    transformers = pytest.importorskip("transformers", reason="no transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported(levels, name, tmp_path))
    given = {"sentence_good": LINES[0], "sentence_bad": LINES[1]}
    choices = ast.literal_eval(jinja2.Template(yaml.safe_load(task)["doc_to_choice"]).render(given))  # as lm-eval does
    ids = [tokenizer(text)["input_ids"] for text in (*choices, *LINES[:2])]
    assert ids[:2] == [[*one, 1] for one in ids[2:]]


@pytest.mark.parametrize("name", ["run", "char", "subword"])
def test_lm_eval_gives_the_accuracy_of_eval_syntax(levels, tmp_path, monkeypatch, task, name):
    lm_eval = pytest.importorskip("lm_eval", reason="no lm-eval")
    pytest.importorskip("datasets", reason="no datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # where the task's file of pairs lies
    import gatedrnn.hf  # noqa: F401 - the Auto classes know the model

    pairs = [(" ".join(p.good), " ".join(p.bad)) for p in agreement_pairs("simple", 40, 1)]
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": "all"}) for good, bad in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "pairs.yaml").write_text(task)
    from lm_eval.tasks import TaskManager

    given = {"pretrained": exported(levels, name, tmp_path), "dtype": "float32"}
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    how = {"device": "cpu", "batch_size": 8, "task_manager": manager, "bootstrap_iters": 0}
    found = lm_eval.simple_evaluate(model="hf", model_args=given, tasks=["pairs"], **how)
    options = ["--unknown", "unk", "--mapping", "exact"]
    wanted = record("eval-syntax", levels / name, "--pairs", tmp_path / "pairs.jsonl", *options)
    assert found["results"]["pairs"]["acc,none"] == pytest.approx(wanted["macro_accuracy"])
    assert 0 < wanted["macro_accuracy"] < 1 and wanted["phenomena"]["all"]["identical"] == 0
