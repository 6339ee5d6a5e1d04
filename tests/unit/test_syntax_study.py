"""Minimal pairs: reading them, judging them, and counting what was not judged."""

import gzip
import json

import pytest
import torch

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, MinimalPair, Vocabulary, read_pairs
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.syntax import beginning_log_probabilities, evaluate_pairs, log_probabilities, sentence_ids

WORDS = ["the", "author", "authors", "laughs", "laugh", "do", "n't", "N"]


@pytest.fixture
def vocabulary():
    return Vocabulary.build([WORDS], min_count=1)


@pytest.fixture
def model(vocabulary):
    torch.manual_seed(1)
    config = LanguageModelConfig(len(vocabulary), embedding_size=8, hidden_sizes=(12, 8), options={"chunk_size": 4})
    return LanguageModel(config).double().eval()


def pair(good, bad, name="agreement", prefix=None):
    return MinimalPair(name, good, bad, prefix)


def one_by_one(model, vocabulary, text):
    ids = [*vocabulary.encode(text.split()), vocabulary.ids[EOS]]
    total, states, before = 0.0, None, vocabulary.ids[EOS]
    with torch.no_grad():
        for word in ids:
            output = model(torch.tensor([[before]]), states)
            total += float(output.logits[0, 0].log_softmax(-1)[word])
            states, before = output.states, word
    return total


@torch.no_grad()
def test_shared_prefixes_change_nothing(model, vocabulary, monkeypatch):
    generator = torch.Generator().manual_seed(2)
    sentences = [
        torch.randint(2, len(vocabulary), (int(n),), generator=generator).tolist()
        for n in torch.randint(1, 6, (200,), generator=generator)
    ]
    sentences += [[2], [2, 3], [2, 3, 4], [2, 3], sentences[0]]
    found = log_probabilities(model, sentences, vocabulary.ids[EOS])
    for ids, score in zip(sentences, found, strict=True):
        text = " ".join(vocabulary.words[i] for i in ids)
        assert score == pytest.approx(one_by_one(model, vocabulary, text), abs=1e-9)
    from gatedrnn.studies.syntax import pairs

    monkeypatch.setattr(pairs, "_LOGITS", 1)
    monkeypatch.setattr(pairs, "_FEWEST", 3)
    assert log_probabilities(model, sentences, vocabulary.ids[EOS]) == pytest.approx(found, abs=1e-9)
    assert log_probabilities(model, [], 1) == []


@torch.no_grad()
def test_a_very_long_sentence_takes_few_calls(model, vocabulary, monkeypatch):
    from gatedrnn.studies.syntax import pairs

    generator = torch.Generator().manual_seed(3)
    one, other = torch.randint(2, len(vocabulary), (2, 3000), generator=generator).tolist()
    sentences = [one, one[:2000] + other[2000:], one[:700], [3, 2], other]
    calls, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda *given: calls.append(1) or forward(*given))
    for logits in (pairs._LOGITS, 900 * len(vocabulary)):
        monkeypatch.setattr(pairs, "_LOGITS", logits)
        calls.clear()
        found = log_probabilities(model, sentences, 1)
        assert len(calls) <= 20
        for ids, score in zip(sentences, found, strict=True):
            logits_TV = forward(torch.tensor([1, *ids])[:, None]).logits[:, 0]
            targets_T = torch.tensor([*ids, 1])
            assert score == pytest.approx(
                float(logits_TV.log_softmax(-1).gather(1, targets_T[:, None]).sum()), rel=1e-9
            )
        start, *scores = beginning_log_probabilities(model, [one, [*one, 2], [*one, 3]], 1)
        expected = forward(torch.tensor([1, *one])[:, None]).logits[-1, 0].log_softmax(-1)[2:4]
        assert [score - start for score in scores] == pytest.approx(expected.tolist(), abs=1e-7)


def test_pairs_are_judged_skipped_and_counted_apart(model, vocabulary):
    pairs = [
        pair("the author laughs", "the author laugh"),
        pair("the authors laugh", "the authors laughs"),
        pair("the author swims", "the author swim"),  # unknown, and the same as <unk>
        pair("the pilot laughs", "the pilot laugh"),  # unknown, and different
        pair("the swimmer", "the pilot", "other"),
    ]
    wins = [
        one_by_one(model, vocabulary, p.good) > one_by_one(model, vocabulary, p.bad)
        for p in (pairs[0], pairs[1], pairs[3])
    ]
    found = evaluate_pairs(model, vocabulary, pairs)
    skipped = found.phenomena["agreement"]
    assert (skipped.pairs, skipped.skipped, skipped.identical) == (2, 2, 0)
    assert skipped.accuracy == sum(wins[:2]) / 2 == found.macro_accuracy
    assert found.phenomena["other"].accuracy is None
    judged = evaluate_pairs(model, vocabulary, pairs, unknown="unk").phenomena
    assert (judged["agreement"].pairs, judged["agreement"].skipped, judged["agreement"].identical) == (3, 0, 1)
    assert judged["agreement"].accuracy == pytest.approx(sum(wins) / 3)
    assert (judged["other"].accuracy, judged["other"].identical) == (None, 1)


def test_one_prefix_decides(model, vocabulary):
    prefixes = [("the author", "laughs", "laugh"), None, ("x", "laugh", "laughs")]
    given = [pair("a", "b", prefix=prefix) for prefix in prefixes]
    found = evaluate_pairs(model, vocabulary, given, method="prefix").phenomena["agreement"]
    with torch.no_grad():
        logits = model(torch.tensor([[1], *([i] for i in vocabulary.encode(["the", "author"]))])).logits[-1, 0]
    better = logits[vocabulary.ids["laughs"]] > logits[vocabulary.ids["laugh"]]
    assert (found.accuracy, found.pairs, found.skipped) == (float(better), 1, 2)
    with pytest.raises(ArgumentError, match="beginning_log_probabilities: a sentence must have at least one word"):
        beginning_log_probabilities(model, [[2], []], 1)


def test_an_appended_word_counts(model, vocabulary):
    given = [pair("the author laughs", "the author laugh")]
    plain = [one_by_one(model, vocabulary, text) for text in ("the author laughs do", "the author laugh do")]
    found = evaluate_pairs(model, vocabulary, given, append="do")
    assert found.phenomena["agreement"].accuracy == float(plain[0] > plain[1])


def test_raw_text_is_cut_into_words(vocabulary):
    assert sentence_ids(vocabulary, "The authors don't laugh.") == vocabulary.encode(
        ["the", "authors", "do", "n't", "laugh"]
    )
    assert sentence_ids(vocabulary, "the 12 pilots") == [vocabulary.ids["the"], vocabulary.ids["N"], 0]
    characters = Vocabulary.learn(iter([["ab"]]), type("D", (), {"level": "char", "min_count": 1})())
    assert sentence_ids(characters, "ba") == characters.encode("ba")


RULES = {
    "exact": ["<unk>", "author", "<unk>", "laugh"],
    "lower": ["the", "author", "<unk>", "laugh"],
    "number": ["the", "author", "N", "laugh"],
}


@pytest.mark.parametrize("rule", RULES)
def test_words_are_looked_up_by_the_named_rule(model, vocabulary, rule):
    seen = vocabulary.encode(RULES[rule])
    assert sentence_ids(vocabulary, "The author 12 laugh", rule) == seen
    written = pair("The author 12 laugh", "laugh 12 author The")
    good, bad = log_probabilities(model, [seen, seen[::-1]], vocabulary.ids[EOS])
    found = evaluate_pairs(model, vocabulary, [written], unknown="unk", mapping=rule)
    assert found.macro_accuracy == float(good > bad)
    skipped = evaluate_pairs(model, vocabulary, [written], mapping=rule).phenomena["agreement"].skipped
    assert skipped == (rule != "number")
    with pytest.raises(ArgumentError, match="mapping: must be one of exact, lower, number; got 'upper'"):
        evaluate_pairs(model, vocabulary, [written], mapping="upper")


def test_both_formats_are_read(tmp_path):
    prefix = dict(zip(("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"), "Abc", strict=True))
    lines = [
        {"phenomenon": "p", "good": "a b", "bad": "a c"},
        {"UID": "u", "sentence_good": "A b.", "sentence_bad": "A c.", **prefix},
        {"good": "a", "bad": "b"},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    (tmp_path / "pairs.jsonl").write_text(text)
    with gzip.open(tmp_path / "pairs.jsonl.gz", "wt") as stream:
        stream.write(text)
    for name in ("pairs.jsonl", "pairs.jsonl.gz"):
        found = list(read_pairs(tmp_path / name))
        assert [p.phenomenon for p in found] == ["p", "u", "all"]
        assert found[1].prefix == ("A", "b", "c") and found[0].prefix is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "2: must be a JSON object"),
        ("[1]", "2: must be a JSON object"),
        ('{"good": "a"}', r"2: must have good.*got \['good'\]"),
        ('{"good": " ", "bad": "a"}', "each with a word"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path, line, told):
    (tmp_path / "pairs.jsonl").write_text('{"good": "a", "bad": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=told):
        list(read_pairs(tmp_path / "pairs.jsonl"))


def test_wrong_choices_are_named(model, vocabulary):
    for options, told in (({"unknown": "drop"}, "'drop'"), ({"method": "two"}, "'two'")):
        with pytest.raises(ArgumentError, match=told):
            evaluate_pairs(model, vocabulary, [pair("a", "b")], **options)
    with pytest.raises(DataError, match="at least one pair"):
        evaluate_pairs(model, vocabulary, [])
