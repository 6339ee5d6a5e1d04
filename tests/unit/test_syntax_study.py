"""Minimal pairs: reading them, judging them, and counting what was not judged."""

import gzip
import json
import math
from itertools import combinations

import pytest
import torch
from tiny_levels import LEVELS, by_steps, of_level

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, DataConfig, MinimalPair, Vocabulary, read_pairs
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.syntax import (
    beginning_log_probabilities,
    continuation_ids,
    evaluate_pairs,
    log_probabilities,
    read_regions,
    sentence_ids,
)

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


def test_a_sign_that_is_no_punctuation_is_an_unknown_word(model, vocabulary):
    pairs = [pair("the 😀 author", "the 😡 author"), pair("the authors +", "the authors €")]
    pairs += [
        pair("the author , laughs — `", "the author laughs", "punctuation"),
        pair("the \u200b", "the …", "punctuation"),
    ]
    found = evaluate_pairs(model, vocabulary, pairs).phenomena
    assert (found["agreement"].skipped, found["agreement"].identical) == (2, 0)
    assert (found["punctuation"].skipped, found["punctuation"].identical) == (0, 2)
    assert [each.unknown for each in read_regions(model, vocabulary, [["the", "😀"]])] == [True]


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


def test_a_prefix_decides_whatever_ends_after_the_word(model, vocabulary):
    torch.manual_seed(0)  # of a model whose sentences' ends change which of two words wins
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=4)
    words = list(combinations(WORDS[:6], 2))
    given = [pair("a", "b", " ".join(both), prefix=("the author", *both)) for both in words]
    found = evaluate_pairs(model, vocabulary, given, method="prefix")
    with torch.no_grad():
        logits = model(torch.tensor([[1], *([i] for i in vocabulary.encode(["the", "author"]))])).logits[-1, 0]
    good, bad = (logits[vocabulary.encode(side)] for side in zip(*words, strict=True))
    assert [each.accuracy for each in found.phenomena.values()] == (good > bad).double().tolist()
    assert found.macro_accuracy == pytest.approx(float((good > bad).double().mean()))


def test_what_has_no_token_is_skipped(model, vocabulary):
    empty = [pair("…", "the author"), pair("the author", "…")]
    assert evaluate_pairs(model, vocabulary, empty).phenomena["agreement"].skipped == 2
    for prefix in (("", "laughs", "laugh"), ("…", "laughs", "laugh"), ("the", "…", "laugh"), ("the", "laughs", "…")):
        found = evaluate_pairs(model, vocabulary, [pair("a", "b", prefix=prefix)], method="prefix")
        assert (found.phenomena["agreement"].skipped, found.macro_accuracy) == (1, None)


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
        {"phenomenon": "p", "sentence_good": None, "good": "a b", "bad": "a c"},
        {"phenomenon": None, "UID": "u", "good": None, "sentence_good": "A b.", "sentence_bad": "A c.", **prefix},
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


SUBJECTS = ["the pilot", "the old pilots", "a guard", "guards", "the old guard"]
VERBS = [
    ("walks", "see the pilots"),
    ("sees", "walk to a garden"),
    ("pilot", "walks"),
    ("old", "garden"),
    ("to", "the"),
    ("walks to", "a"),
    ("pilots see", "to"),
]
PAIRS = [(s, *v) for s in SUBJECTS for v in VERBS]


def verdicts(model, vocabulary, pairs, **how):
    found = evaluate_pairs(model, vocabulary, pairs, unknown="unk", **how).phenomena.values()
    return [one.accuracy for one in found]


@pytest.mark.parametrize("append", ["", "."])
@pytest.mark.parametrize("level", LEVELS)
def test_pairs_are_read_as_written_and_as_suites_are(level, append, monkeypatch):
    model, vocabulary = of_level(level)
    read = []
    spy = lambda model, sentences, eos: read.extend(sentences) or log_probabilities(model, sentences, eos)  # noqa: E731
    monkeypatch.setattr("gatedrnn.studies.syntax.evaluation.log_probabilities", spy)
    given = [MinimalPair(str(k), f"{s} {a}", f"{s} {b}") for k, (s, a, b) in enumerate(PAIRS)]
    end = f" {append}" if append else ""
    wanted = []
    for pair in given:
        ids = [[*vocabulary.encode(vocabulary.tokens(text + end)), 1] for text in (pair.good, pair.bad)]
        wanted.append(float(sum(by_steps(model, ids[0])) > sum(by_steps(model, ids[1]))))
    assert verdicts(model, vocabulary, given, append=append) == wanted
    texts = [text + end for pair in given for text in (pair.good, pair.bad)]
    assert read == [vocabulary.encode(vocabulary.tokens(text)) for text in texts]
    nats = log_probabilities(model, [sentence_ids(vocabulary, text) for text in texts], 1)
    regions = [[*text.rsplit(" ", 1)] for text in texts]
    bits = [sum(map(sum, one.bits)) for one in read_regions(model, vocabulary, regions)]
    assert nats == pytest.approx([-one * math.log(2) for one in bits], abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_a_prefix_is_followed_by_the_whole_word(level):
    model, vocabulary = of_level(level)
    given = [MinimalPair(str(k), "x", "x", one) for k, one in enumerate(PAIRS)]
    wanted = []
    for prefix, *words in PAIRS:
        start = len(vocabulary.tokens(prefix))
        ids = [vocabulary.encode(vocabulary.tokens(f"{prefix} {word}")) for word in words]
        assert all(each[:start] == vocabulary.encode(vocabulary.tokens(prefix)) for each in ids)
        good, bad = (sum(by_steps(model, each)[start:]) for each in ids)
        wanted.append(float(good > bad))
    assert verdicts(model, vocabulary, given, method="prefix") == wanted
    assert 0 < sum(wanted) < len(wanted)


@pytest.mark.parametrize("tokenize", ["none", "penn"])
@pytest.mark.parametrize(
    ("before", "text", "sentence", "words"),
    [
        ("shares of Mr. ", "Vinken", "shares of Mr. Vinken fell .", ["shares of Mr.", "Vinken"]),
        ("shares of Mr. ", "Vinken", "", ["shares of Mr.", "Vinken"]),
        ("in the ", "U.S.", "in the U.S. fell shares", ["in the", "U.S."]),
        ("in the ", "U.S.", "in the U.S.", ["in the", "U.S ."]),
        ("in the U.S. ", "shares", "in the U.S. shares fell", ["in the U.S.", "shares"]),
        ("in the ", "shares", "in the shares.", ["in the", "shares"]),
        ("they ", "ca", "they can't", ["they", "ca"]),
        ("they ", "can't", "they can't fell", ["they", "ca n't"]),
        ("they ", "was", "they wasn't", ["they", "was"]),
        ("the shares", " fell", "", ["the shares", "fell"]),
    ],
)
def test_a_prefix_is_cut_as_it_stands_in_its_sentence(tokenize, before, text, sentence, words):
    every = "shares of Mr. Vinken fell in the U.S. U.S . they ca n't was"
    vocabulary = Vocabulary.learn([[every + " x"]], DataConfig(tokenize=tokenize, min_count=1))
    found = continuation_ids(vocabulary, before, text, sentence=sentence)
    assert [" ".join(vocabulary.decode(ids)) for ids in found] == words


def test_a_word_that_joins_its_prefix_is_skipped():
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra hf")
    from gatedrnn.data.subwords import Subwords

    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "a b": 2, "c": 3}, unk_token="<unk>"))
    vocabulary = Vocabulary.of(Subwords(whole))
    assert continuation_ids(vocabulary, "a ", "b")[1] == []
    model = LanguageModel(LanguageModelConfig(len(vocabulary), embedding_size=4, hidden_sizes=(4,), cell="lstm"))
    given = [MinimalPair("p", "a b", "a c", ("a", "b", "c"))]
    assert evaluate_pairs(model, vocabulary, given, method="prefix").phenomena["p"].skipped == 1


def test_nothing_is_appended_to_a_prefix():
    model, vocabulary = of_level("word")
    given = [MinimalPair("p", "the pilot", "the old", ("the", "pilot", "old"))]
    with pytest.raises(ArgumentError, match=r"append: works only with the method sentence; got '\.' with the method"):
        evaluate_pairs(model, vocabulary, given, method="prefix", append=".")


WHOLE = ["@-@", "@", "l'", "homme", "C#", "'n'", "sleeps.", "sleeps", "Mr.", "year", "no", "."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("year @-@ year", ["year", "@-@", "year"]),
        ("l' homme", ["l'", "homme"]),
        ("L' homme", ["l'", "homme"]),
        ("C# 'n' C#", ["C#", "'n'", "C#"]),
        ("Mr. homme sleeps.", ["Mr.", "homme", "sleeps", "."]),  # the sentence ends, and the vocabulary has the word
        ("homme sleeps. homme", ["homme", "sleeps.", "homme"]),
        ("homme don't", ["homme", "<unk>", "<unk>"]),
    ],
)
def test_what_the_vocabulary_has_is_not_cut(text, words):
    known = Vocabulary.build([WHOLE], min_count=1)
    expected = [known.ids[word] for word in words]
    assert sentence_ids(known, text) == expected
    start, _, end = text.partition(" ")
    before, after = continuation_ids(known, f"{start} ", end)
    assert before + after == expected
    assert [each.unknown for each in read_regions(_model(known), known, [[text]])] == ["<unk>" in words]


def test_a_word_known_in_lower_case_is_not_cut_where_it_is_looked_up():
    known = Vocabulary.build([["don't", "c#", "do", "n't", "c", "#", "C"]], min_count=1)
    whole, cut = known.encode(["don't", "c#"]), known.encode(["<unk>", "n't", "C", "#"])
    assert [sentence_ids(known, "Don't C#", rule) for rule in ("exact", "lower", "number")] == [cut, whole, whole]


def _model(known):
    return LanguageModel(LanguageModelConfig(len(known), cell="gru", embedding_size=4, hidden_sizes=(4,)))


@pytest.mark.parametrize("level", list(LEVELS))
def test_white_space_at_the_end_of_a_sentence_does_not_count(level):
    known = of_level(level)[1]
    for text in ("the pilot. ", "the pilot.\n", "the pilot.\t "):
        assert sentence_ids(known, text) == sentence_ids(known, "the pilot.")


def test_a_full_stop_at_the_end_is_none_of_an_abbreviation_that_is_known_too():
    known = Vocabulary.build([["wash.", "wash", "mary"]], min_count=1)  # Washington
    assert sentence_ids(known, "mary wash.") == [known.ids["mary"], known.ids["wash"]]
    assert sentence_ids(known, "mary wash. mary") == [known.ids[word] for word in ("mary", "wash.", "mary")]
