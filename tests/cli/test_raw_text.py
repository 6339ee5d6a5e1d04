"""Runs of `data.tokenize: penn` take sentences as people write them, and give them back so."""

import json
import re

import pytest
import yaml
from terminal import fails, works

import gatedrnn
from gatedrnn.data.penn import penn_words

RAW = ["The old man can't sleep.", 'He said, "I don\'t know."', "Dogs (and cats) bark at 5% of strangers!"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A folder with raw text and a run on it."""
    folder = tmp_path_factory.mktemp("raw")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("\n".join(RAW * 5) + "\n")
    config = {
        "data": {"tokenize": "penn", "min_count": 1},
        "model": {"embedding_size": 8, "hidden_sizes": [8, 8], "options": {"chunk_size": 4}},
        "training": {"epochs": 1, "batch_size": 2, "device": "cpu"},
    }
    (folder / "raw.yaml").write_text(yaml.safe_dump(config))
    works("train", "--config", folder / "raw.yaml", "--data", folder, "--out", folder / "run")
    return folder


def text(folder, *lines):
    """A file of lines."""
    path = folder / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_setting_is_kept_with_the_run(raw):
    assert yaml.safe_load((raw / "run" / "config.yaml").read_text())["data"]["tokenize"] == "penn"
    run = gatedrnn.load_run(raw / "run")
    assert run.vocabulary.tokenize == "penn" and "sleep" in run.vocabulary.ids and "sleep." not in run.vocabulary.ids


def test_evaluate_counts_words_and_knows_them(raw):
    found = json.loads(works("evaluate", raw / "run", "--data", raw / "test.txt", "--json"))
    assert found["tokens"] == 5 * sum(len(penn_words(line)) + 1 for line in RAW)


def test_parse_has_the_words_as_leaves(raw, tmp_path):
    trees = works("parse", raw / "run", text(tmp_path, "Dogs (and cats) can't bark.", "", "He.")).splitlines()
    leaves = re.findall(r"[^\s()]+(?=[\s)])", trees[0].replace("(X", ""))
    assert leaves == ["Dogs", "-LRB-", "and", "cats", "-RRB-", "ca", "n't", "bark", "."]
    assert trees[1] == "" and len(trees) == 3


def test_surprisal_has_a_row_a_word(raw, tmp_path):
    record = json.loads(works("surprisal", raw / "run", text(tmp_path, "He can't sleep."), "--json"))
    assert record["words"] == ["He", "ca", "n't", "sleep", ".", "<eos>"]
    assert not any(record["unknown"])
    already = json.loads(works("surprisal", raw / "run", text(tmp_path, "He ca n't sleep ."), "--json"))
    assert already == record


def test_generate_writes_as_people_do_and_goes_on_from_such_a_prompt(raw):
    how = ("generate", raw / "run", "--prompt", "He can't", "--words", 30)
    found = json.loads(works(*how, "--json"))
    assert found["text"][:3] == ["He", "ca", "n't"] and found["prompt_words"] == 3
    text = works(*how)
    assert text.startswith("He can't") and " n't" not in text and "``" not in text and " ." not in text


def test_gates_reads_a_sentence(raw, tmp_path):
    works("gates", raw / "run", "--sentence", "He can't.", "--out", tmp_path)
    (record,) = json.loads((tmp_path / "gates.json").read_text()).values()
    assert record["sentences"][0]["words"] == ["He", "ca", "n't", "."]


def test_going_on_keeps_the_setting_and_refuses_another(raw):
    how = ("train", "--out", raw / "run", "--resume", "--training.epochs", 2)
    assert "must be as in the run; got 'none', and 'penn' in the run" in fails(*how, "--data.tokenize", "none")
    works(*how)
    assert gatedrnn.load_run(raw / "run").config.data.tokenize == "penn"


def test_a_run_of_before_reads_words_between_spaces(work):
    run = gatedrnn.load_run(work / "run")
    assert run.config.data.tokenize == "none" and run.vocabulary.tokens("It ends.") == ["It", "ends."]


def test_transformers_cannot_cut_so(raw, tmp_path):
    told = "--to hf: cannot split words as data.tokenize=penn does; got a run of tokenize=penn"
    assert told in fails("export", raw / "run", "--to", "hf", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_unk_is_never_sampled(work):
    how = ("generate", work / "run", "--words", 300, "--temperature", 50, "--json")
    assert "<unk>" in json.loads(works(*how))["text"]
    found = json.loads(works(*how, "--no-unk"))["text"]
    assert len(found) == 300 and "<unk>" not in found
