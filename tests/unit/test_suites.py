"""Suites of SyntaxGym: formulae against Python's own arithmetic, results against hand-made surprisals, files that are wrong."""

import copy
import json
import random
import re

import pytest

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import read_suite
from gatedrnn.studies.syntax import Formula, evaluate_suite
from gatedrnn.studies.syntax.suites import RegionsRead

# ---------------------------------------------------------------- formulae

VALUES = {
    (k, c): float(v) for (k, c), v in zip([(k, c) for k in (1, 2, "*") for c in "ab"], [3, 5, 2, 2, 9, 7], strict=True)
}


def made(depth, generator, truth):
    """A formula, and the same in Python."""
    choose, inner = generator.choice, lambda kind: made(depth - 1, generator, kind)
    if truth and depth > 0 and generator.random() < 0.5:
        sign, word = choose([("&", "and"), ("|", "or")])
        (one, python), (other, second) = inner(True), inner(True)
        opened, closed = choose(["()", "[]"])
        return f"{opened}{one}{closed} {sign} {opened}{other}{closed}", f"(({python}) {word} ({second}))"
    if truth:
        sign = choose("<>=")
        (one, python), (other, second) = inner(False), inner(False)
        return f"{one} {sign} {other}", f"({python}) {'==' if sign == '=' else sign} ({second})"
    if depth > 0 and generator.random() < 0.6:
        sign = choose("+-")
        (one, python), (other, second) = inner(False), inner(False)
        return f"{one}{sign} [{other}]", f"({python}) {sign} ({second})"
    if generator.random() < 0.3:
        number = choose(["2", "0.5", "1e1", "-3"])
        return number, number
    region = choose(list(VALUES))
    return f"({region[0]};%{region[1]}%)", f"v[{region!r}]"


def test_formulae_are_what_python_makes_of_them():
    generator, seen = random.Random(1), set()
    for _ in range(500):
        text, python = made(3, generator, True)
        found = Formula(text).holds(VALUES.__getitem__)
        assert found == eval(python, {"v": VALUES}), text  # the oracle's text is our own
        seen.add(found)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("(1;%a%) < (1;%b%)", True),
        ("[(1;%a%) > (1;%b%)] & [(2;%a%) = (2;%b%)]", False),
        ("[(1;%b%) > (1;%a%)] & [[(1;%b%) - (1;%a%)] > [(2;%a%) - (2;%b%)]]", True),
        ("((1;%b%) > (1;%a%) ) & ((*;%a%) > (*;%b%))", True),
        ("(1;%a%) > 3 | (1;%a%) < 3 | (1;%a%) = 3.0009", True),
        ("(1;%a%) = 3.0011", False),
        ("1 > 2 & 1 > 2 | 1 < 2", True),
        ("1 < 2 | 1 < 2 & 1 > 2", False),  # from left to right, as in SyntaxGym
        ("1 < 2 | (1 < 2 & 1 > 2)", True),
        (" & ".join(["1 < 2"] * 1200), True),
        ("9 - 3 + 2 = 8", True),
        ("(1;%a%) < (1;%a%)", False),
        ("-(1;%a%) = - - -3", True),
    ],
)
def test_formulae(text, holds):
    assert Formula(text).holds(VALUES.__getitem__) is holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "column 1 must be a region such as (2;%match%), a number or (; got its end"),
        ("(1;%a%)", "column 1 must be a comparison"),
        ("(1;%a%) < (1;%b%) < 3", "column 19 must be one of < > = & | + - or the end; got '< 3'"),
        ("(1;%a%) < __import__('os')", "column 11 must be a region"),
        ("abs((1;%a%)) < 3", "column 1 must be a region"),
        ("(1;%a%) * 2 < 3", "column 9 must be one of"),
        ("(1;%a%) <", "column 10 must be a region"),
        ("((1;%a%) < 2", "column 13 must be an operator or )"),
        ("[(1;%a%) < 2)", "column 13 must be an operator or ]"),
        (f"({'9' * 5000};%a%) < 1", "column 5002 must be an operator or )"),
        ("1 < 2 | (1;%a%)", "column 9 must be a comparison"),
        ("(1;%a%) & 1 < 2", "column 1 must be a comparison before &"),
        ("(1 < 2) + 3 < 4", "column 1 must be a number or a region, not a comparison"),
        ("1 < (2 < 3)", "column 5 must be a number or a region, not a comparison"),
        ("(" * 60 + "1", "at most 50 levels of brackets"),
        ("-" * 99_999, "must have at most 10,000 characters"),
        ("-" * 999 + "1 < 2", "at most 50 levels of brackets"),
    ],
)
def test_what_is_no_formula_is_told_with_its_place(text, told):
    with pytest.raises(DataError, match=re.escape(told)):
        Formula(text)


# ---------------------------------------------------------------- suites


def condition(name, *texts):
    return {
        "condition_name": name,
        "regions": [{"region_number": k, "content": text} for k, text in enumerate(texts, 1)],
    }


SUITE = {
    "meta": {"name": "agreement", "metric": "sum"},
    "region_meta": {"1": "subject", "2": "verb", "3": "end"},
    "predictions": [
        {"type": "formula", "formula": "(2;%match%) < (2;%mismatch%)"},
        {"type": "formula", "formula": "(*;%match%) < (*;%mismatch%)"},
    ],
    "items": [
        {"item_number": 3, "conditions": [condition("match", "a b", "c", ""), condition("mismatch", "a b", "d e", "")]},
        {"item_number": 7, "conditions": [condition("match", "b", "c d", "e"), condition("mismatch", "b", "e", "e")]},
        {"item_number": 9, "conditions": [condition("mismatch", "a", "f", ""), condition("match", "a", "x", "f")]},
    ],
}
BITS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0, "x": 0.5}
END = 0.25


def hand(sentences):
    """Surprisals made by hand: one a letter; x is unknown."""
    for regions in sentences:
        bits = [[BITS[letter] for letter in text.split()] for text in regions]
        bits[-1].append(END)
        yield RegionsRead(bits, any("x" in text for text in regions))


def judged(tmp_path, change=lambda suite: None, **how):
    suite = copy.deepcopy(SUITE)
    change(suite)
    (tmp_path / "a.json").write_text(json.dumps(suite))
    return evaluate_suite(read_suite(tmp_path / "a.json"), hand, **how)


def test_accuracy_of_hand_made_surprisals(tmp_path):
    # verbs: 3 < 9; 7 > 5; x. sentences: 6.25 < 12.25; 14.25 > 12.25; x
    found = judged(tmp_path).as_dict()
    reasons = {"unknown word": 1}
    half = {"accuracy": 0.5, "items": 2, "skipped": 1, "reasons": reasons}
    formulae = [one["formula"] for one in SUITE["predictions"]]
    assert found == half | {"predictions": [{"formula": formula} | half for formula in formulae]}
    # with x: 0.5 < 6, and 7.75 > 7.25: the suite holds where both predictions do
    found = judged(tmp_path, unknown="unk").as_dict()
    assert [one["accuracy"] for one in found["predictions"]] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert (found["accuracy"], found["items"], found["skipped"]) == (pytest.approx(1 / 3), 3, 0)
    assert judged(tmp_path).regions[3, "mismatch"] == {1: 3.0, 2: 9.0, 3: END}


@pytest.mark.parametrize(
    ("metric", "value"), [("sum", 12.0), ("mean", 4.0), ("median", 4.0), ("range", 2.0), ("max", 5.0), ("min", 3.0)]
)
def test_metrics(tmp_path, metric, value):
    def change(suite):
        suite["meta"]["metric"] = metric
        suite["items"] = suite["items"][:1]
        suite["items"][0]["conditions"][0] = condition("match", "a", "c d e", "a")
        suite["predictions"] = [{"type": "formula", "formula": f"(2;%match%) = {value} & (2;%mismatch%) > 0"}]

    found = judged(tmp_path, change)
    assert found.regions[3, "match"][2] == value and found.whole.accuracy == 1


def test_a_region_without_a_word_is_zero_or_skipped(tmp_path):
    def change(suite, metric="sum"):
        suite["meta"]["metric"] = metric
        suite["items"] = [
            {"item_number": 1, "conditions": [condition("match", "", "a"), condition("mismatch", "b", "a")]}
        ]
        suite["predictions"] = [{"type": "formula", "formula": "(1;%match%) < (1;%mismatch%)"}]

    assert judged(tmp_path, change).whole.accuracy == 1
    found = judged(tmp_path, lambda suite: change(suite, "mean"))
    assert (found.whole.accuracy, found.whole.skipped) == (None, {"region without a word": 1})
    assert found.regions[1, "match"][1] is None


def test_only_conditions_that_a_formula_names_are_asked_for_unknown_words(tmp_path):
    def change(suite):
        suite["items"][0]["conditions"].append(condition("other", "x"))

    assert judged(tmp_path, change).whole.items == 2


def test_an_unknown_choice_for_unknown_words_is_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"eval-syntax\.unknown: must be one of skip, unk; got 'drop'"):
        judged(tmp_path, unknown="drop")


def test_string_predictions_of_older_suites(tmp_path):
    def change(suite):
        suite["predictions"] = []
        suite["meta"] = {"name": "s", "metric": "all", "string_predictions": ["[(2;%match%) < (2;%mismatch%)]"]}

    assert judged(tmp_path, change).whole.accuracy == 0.5


def deleted(*path):
    def change(suite):
        *way, last = path
        for key in way:
            suite = suite[key]
        del suite[last]

    return change


def put(value, *path):
    def change(suite):
        *way, last = path
        for key in way:
            suite = suite[key]
        suite[last] = value

    return change


REGION = ("items", 1, "conditions", 0, "regions", 1)
WRONG = {
    "no items": (deleted("items"), "must have a list of items, with at least one; got none"),
    "no predictions": (put([], "predictions"), "must have a list of predictions, with at least one; got none"),
    "items of another kind": (put({"a": 1}, "items"), "must have a list of items, with at least one; got {'a': 1}"),
    "an item of another kind": (put(5, "items", 1), "item 2: an item must be a JSON object; got 5"),
    "another kind of prediction": (put("code", "predictions", 1, "type"), "predictions[1]: must have type formula"),
    "a bad formula": (put("(2;%match%) <", "predictions", 1, "formula"), "predictions[1]: column 14 must be a region"),
    "an unknown metric": (
        put("avg", "meta", "metric"),
        "meta.metric: must be one of sum, mean, median, range, max, min; got 'avg'",
    ),
    "a missing condition": (deleted("items", 1, "conditions", 1), "item 7: must have the condition of (2;%mismatch%)"),
    "an unknown condition": (
        put("(2;%m%) < 1", "predictions", 0, "formula"),
        "item 3: must have the condition of (2;%m%) in '(2;%m%) < 1'; got match, mismatch",
    ),
    "an unknown region": (
        put("(4;%match%) < 1", "predictions", 0, "formula"),
        "item 3: must have the region of (4;%match%)",
    ),
    "a condition twice": (
        put("match", "items", 1, "conditions", 1, "condition_name"),
        "item 2: condition_name must be a string, unique in its item; got 'match'",
    ),
    "a condition without a name": (
        deleted("items", 1, "conditions", 1, "condition_name"),
        "item 2: condition_name must be a string",
    ),
    "no regions": (
        deleted("items", 1, "conditions", 1, "regions"),
        "item 2, condition mismatch: must have a list of regions",
    ),
    "a region's number twice": (
        put(1, *REGION, "region_number"),
        "item 2, condition match: region_number must be unique in its condition; got 1",
    ),
    "a region that is not declared": (
        put(5, *REGION, "region_number"),
        "item 2, condition match: must be in region_meta; got 5",
    ),
    "a region without a number": (deleted(*REGION, "region_number"), "region_number: must be a whole number; got None"),
    "a region without a text": (put(None, *REGION, "content"), "region 2: content must be a string; got None"),
    "an item twice": (put(3, "items", 1, "item_number"), "item_number must be unique; got 3 twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_suite_is_told_with_its_place(tmp_path, name):
    change, told = WRONG[name]
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        judged(tmp_path, change)
    assert "\n" not in str(caught.value) and "a.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"items": ["\\ud800"]}', "[" * 100_000])
def test_what_is_no_suite(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        read_suite(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"meta": 5}, 'meta must be a JSON object; got 5. Write {"name": "my suite", "metric": "sum"}.'),
        ({"region_meta": [1]}, 'region_meta must be a JSON object; got [1]. Write {"1": "subject", "2": "verb"}.'),
        ({"region_meta": {"a": "b"}}, "region_meta: must be a whole number; got 'a'. Write a number such as 1."),
        ({"region_meta": {"9" * 5000: "b"}}, "region_meta: must be a whole number; got '999"),
        ({"predictions": [{"type": "code"}]}, 'Write {"type": "formula", "formula": "(2;%match%) < (2;%mismatch%)"}.'),
        ({"items": []}, 'must have a list of items, with at least one; got none. Write "items": [...].'),
    ],
)
def test_what_is_wrong_in_a_suite_is_told_with_what_to_write(change, told, tmp_path):
    regions = [{"region_number": 1, "content": "a"}]
    suite = {
        "items": [{"item_number": 1, "conditions": [{"condition_name": "a", "regions": regions}]}],
        "predictions": [{"type": "formula", "formula": "(1;%a%) > 0"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(suite).replace('"condition_name": "a"', '"condition_name": "a "'))
    assert read_suite(path).name == "a"
    path.write_text(json.dumps(suite | change))
    with pytest.raises(DataError) as caught:
        read_suite(path)
    assert told in str(caught.value)


def test_items_without_a_number_are_counted_from_one(tmp_path):
    items = [{"conditions": [condition("match", "a", "b")]} for _ in range(3)]
    suite = {"predictions": ["(1;%match%) < (2;%match%)"], "items": items}
    (tmp_path / "a.json").write_text(json.dumps(suite))
    assert [item.number for item in read_suite(tmp_path / "a.json").items] == [1, 2, 3]
