"""An exported run in minicons and in `lm-eval --model hf`: the numbers of `surprisal` and of `eval-syntax`."""

import json

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


@pytest.mark.parametrize(("name", "end"), [("run", " <eos>"), ("char", "<eos>"), ("subword", "<eos>")])
def test_lm_eval_gives_the_accuracy_of_eval_syntax(levels, tmp_path, monkeypatch, name, end):
    lm_eval = pytest.importorskip("lm_eval", reason="no lm-eval")
    pytest.importorskip("datasets", reason="no datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import gatedrnn.hf  # noqa: F401 - the Auto classes know the model

    pairs = [(" ".join(p.good), " ".join(p.bad)) for p in agreement_pairs("simple", 40, 1)]
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": "all"}) for good, bad in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    task = {
        "task": "pairs",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"train": str(tmp_path / "pairs.jsonl")}},
        "output_type": "multiple_choice",
        "validation_split": "train",
        "doc_to_text": "",
        "target_delimiter": "",
        "doc_to_target": 0,
        "doc_to_choice": f"{{{{[sentence_good + '{end}', sentence_bad + '{end}']}}}}",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "pairs.yaml").write_text(yaml.safe_dump(task))
    from lm_eval.tasks import TaskManager

    given = {"pretrained": exported(levels, name, tmp_path), "dtype": "float32"}
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    how = {"device": "cpu", "batch_size": 8, "task_manager": manager, "bootstrap_iters": 0}
    found = lm_eval.simple_evaluate(model="hf", model_args=given, tasks=["pairs"], **how)
    options = ["--unknown", "unk", "--mapping", "exact"]
    wanted = record("eval-syntax", levels / name, "--pairs", tmp_path / "pairs.jsonl", *options)
    assert found["results"]["pairs"]["acc,none"] == pytest.approx(wanted["macro_accuracy"])
    assert 0 < wanted["macro_accuracy"] < 1 and wanted["phenomena"]["all"]["identical"] == 0
