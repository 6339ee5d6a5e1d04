"""How words are looked up and which of them count: stored in a run, its default, and overridden; the words of a prompt."""

import json
from itertools import repeat

import pytest
import yaml
from terminal import copy_of, fails, record, records, works

from gatedrnn.data import read_treebank
from gatedrnn.serve import Limits
from gatedrnn.training.run import load_run

SEEN = {  # what the model sees of a word in capitals, of a number and of another word
    "exact": ("<unk>", "<unk>", "the"),
    "lower": ("pilot", "<unk>", "the"),
    "number": ("pilot", "N", "the"),
}
WRITTEN = ("PILOT", "4711", "the")
COMMANDS = ("parse", "eval-parsing", "eval-syntax")


@pytest.fixture(scope="module")
def run(work, tmp_path_factory):
    """A run whose vocabulary has the number word `N` in place of one of its words, and no mapping of its own."""
    folder = copy_of(work / "run", tmp_path_factory.mktemp("words") / "run", mapping=None)
    vocabulary = folder / "vocabulary.json"
    vocabulary.write_text(vocabulary.read_text().replace('"nurse"', '"N"'))
    assert '"N"' in vocabulary.read_text()
    return folder


@pytest.fixture
def reading(work, tmp_path):
    """What a command finds in a text whose words are these in turn, without what it says of the mapping."""

    def found(command, run, words, *options):
        trees = list(read_treebank(work / "text" / "test.trees"))[:12]
        for tree in trees:
            for k, place in enumerate(tree.treepositions("leaves")):
                tree[place] = words[k % 3]
        lines = [tree.leaves() for tree in trees]
        tmp_path.joinpath("a.txt").write_text("\n".join(map(" ".join, lines)))
        tmp_path.joinpath("a.trees").write_text("\n".join(map(str, trees)))
        pairs = [json.dumps({"good": " ".join(line), "bad": " ".join(line[::-1])}) for line in lines]
        tmp_path.joinpath("a.jsonl").write_text("\n".join(pairs))
        what = {
            "parse": ["a.txt"],
            "eval-parsing": ["--treebank", "a.trees"],
            "eval-syntax": ["--pairs", "a.jsonl", "--unknown", "unk"],
        }[command]
        what = [tmp_path / name if name.startswith("a.") else name for name in what]
        each = records(command, run, *what, *options)
        kept = [{k: v for k, v in one.items() if k not in ("mapping", "words", "tree")} for one in each]
        return {one["mapping"] for one in each}, kept

    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_words_are_looked_up_by_the_rule_of_the_run_or_the_named_one(run, reading, tmp_path, command):
    seen = {rule: reading(command, run, words, "--mapping", "exact")[1] for rule, words in SEEN.items()}
    assert len(set(map(json.dumps, seen.values()))) == 3
    for rule, other in zip(SEEN, (*list(SEEN)[1:], "exact"), strict=True):
        own = copy_of(run, tmp_path / rule, mapping=rule)
        assert reading(command, own, WRITTEN) == ({rule}, seen[rule])
        assert reading(command, own, WRITTEN, "--mapping", other) == ({other}, seen[other])
    assert reading(command, run, WRITTEN) == ({"number"}, seen["number"])


def test_training_stores_both_rules(work, tmp_path):
    where = ["--data", work / "text", "--out", tmp_path / "run", "--training.epochs", 1]
    works("train", "--config", work / "run.yaml", *where, "--data.mapping", "lower", "--data.words", "alnum")
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]
    assert (stored["mapping"], stored["words"]) == ("lower", "alnum")
    plain = yaml.safe_load((work / "run" / "config.yaml").read_text())["data"]
    assert (plain["mapping"], plain["words"]) == ("number", "ptb")
    found = record("eval-parsing", tmp_path / "run", "--treebank", work / "text" / "test.trees")
    assert (found["mapping"], found["words"]) == ("lower", "alnum")


def test_the_rules_are_told_in_words_too(work, tmp_path):
    own = copy_of(work / "run", tmp_path / "run", mapping="exact", words="alnum")
    treebank = ["--treebank", work / "text" / "test.trees"]
    said = "words counted by rule {}; words looked up by rule {}; distances from the master {} gate"
    assert said.format("alnum", "exact", "forget") in works("eval-parsing", own, *treebank)
    options = ["--words", "ptb", "--mapping", "lower", "--gate", "master_input"]
    assert said.format("ptb", "lower", "input") in works("eval-parsing", own, *treebank, *options)
    alone = works("eval-parsing", *treebank, "--baseline", "left", "--words", "alnum")
    assert "words counted by rule alnum\n" in alone and "looked up" not in alone
    for rule, options in (("exact", []), ("lower", ["--mapping", "lower"])):
        table = " ".join(works("eval-syntax", own, "--pairs", "grammar", *options).split())
        assert f"words looked up by rule {rule})" in table


@pytest.mark.parametrize(
    ("named", "kept"), [(None, ["een", "kat", "ziet"]), ("alnum", ["een", "kat", "ziet"]), ("ptb", [])]
)
def test_which_words_count_is_the_runs_own_rule_or_the_named_one(work, tmp_path, named, kept):
    own = copy_of(work / "run", tmp_path / "run", words="alnum")
    (tmp_path / "a.trees").write_text("(S (NP (XX een) (XX kat)) (VP (XX ziet) (XX !)))\n")
    arguments = ["eval-parsing", own, "--treebank", tmp_path / "a.trees", "--max-words", 3]
    arguments += ["--words", named] if named else []
    if kept:
        found = record(*arguments)
        assert (found["sentences"], found["words"]) == (1, "alnum") and found["depth"]["left"] == len(kept) - 1
    else:
        assert "must hold a sentence with a word that counts" in fails(*arguments)


def test_runs_with_different_rules_need_a_named_one(work, tmp_path):
    own = copy_of(work / "other", tmp_path / "run", words="alnum", mapping="lower")
    arguments = ["eval-parsing", work / "run", own, "--treebank", work / "text" / "test.trees"]
    line = fails(*arguments)
    assert "--words: must be given where runs have different rules; got alnum, ptb. Add --words ptb" in line
    found = record(*arguments, "--words", "ptb")
    assert (found["words"], found["mapping"]) == ("ptb", ["lower", "number"])


@pytest.mark.parametrize("key", ["mapping", "words"])
def test_an_unknown_rule_is_refused(work, tmp_path, key):
    bad = copy_of(work / "run", tmp_path / "run", **{key: "upper"})
    assert f"data.{key}: must be one of" in fails("parse", bad, work / "text" / "test.txt")
    where = ["--config", work / "run.yaml", "--data", work / "text", "--out", tmp_path / "out"]
    assert f"data.{key}: must be one of" in fails("train", *where, f"--data.{key}", "upper")
    assert not (tmp_path / "out").exists()
    what = ["--treebank", work / "text" / "test.trees", f"--{key}", "upper"]
    assert f"argument --{key}: invalid choice: 'upper'" in fails("eval-parsing", work / "run", *what, code=2)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_from_before_the_rules_loads(work, tmp_path, command):
    old = copy_of(work / "run", tmp_path / "run", mapping=None, words=None)
    text = (old / "config.yaml").read_text()
    assert "mapping" not in text and "words" not in text
    what = {"parse": [work / "text" / "test.txt"], "eval-parsing": ["--treebank", work / "text" / "test.trees"]}
    arguments = what.get(command, ["--pairs", "grammar"])
    assert records(command, old, *arguments)[0]["mapping"] == "number"
    assert command != "eval-parsing" or record(command, old, *arguments)["words"] == "ptb"


@pytest.mark.parametrize(("mapping", "known"), [("exact", False), ("lower", True), ("number", True)])
def test_a_prompt_is_looked_up_by_the_rule_of_the_run(work, tmp_path, monkeypatch, mapping, known):
    folder = copy_of(work / "run", tmp_path / "run", mapping=mapping)
    run, asked = load_run(folder), list[list[int]]()
    expected = [1, run.vocabulary.ids["the"] if known else 0, run.vocabulary.ids["pilot"]]

    def generated(model, ids, **how):
        asked.append(ids)
        return repeat(2)

    monkeypatch.setattr("gatedrnn.cli.commands.generate.generate", generated)
    monkeypatch.setattr("gatedrnn.app.readings.generate", generated)
    works("generate", folder, "--prompt", "The pilot", "--words", 2)
    from gatedrnn.app.readings import go_on

    go_on(run, "The pilot", 1.0, 2, 1)
    assert asked == [expected] * 2
    pytest.importorskip("fastapi")
    from gatedrnn.serve.completions import read_prompts
    from gatedrnn.serve.schema import CompletionBody

    ((tokens, ids, many),) = read_prompts(CompletionBody(prompt="The pilot"), run, Limits())
    assert (tokens, ids, many) == (["<eos>", "The", "pilot"], expected, 2)
