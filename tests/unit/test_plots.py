"""Figures and the demo's page."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

from gatedrnn.plots.report import write_report
from gatedrnn.plots.trees import curve, save, to_svg, tree_and_gates

WORDS = ["the", "<b>", "sees", "a", "dog&cat"]
GOLD = [("S", (0, 5)), ("NP", (0, 2)), ("VP", (2, 5)), ("NP", (3, 5))]
INDUCED = [(0, 5), (0, 2), (2, 5), (2, 4)]
GATES = np.linspace(0, 1, 5 * 6).reshape(5, 6)
HEATS = {"layer 2": GATES.tolist(), "layer 1": GATES[::-1].tolist()}


def texts(svg):
    """Texts of a well-formed SVG, whose root must be an svg element."""
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


def test_a_sentence_is_drawn_with_its_words_and_labels_as_text():
    found = texts(to_svg(tree_and_gates(WORDS, GOLD, INDUCED, HEATS)))
    assert [text for text in found if text in WORDS] == WORDS
    assert sorted(text for text in found if text in ("S", "NP", "VP")) == ["NP", "NP", "S", "VP"]
    assert {"gold", "induced"} <= set(found)


def test_the_same_sentence_gives_the_same_bytes():
    first, second = (to_svg(tree_and_gates(WORDS, GOLD, INDUCED, HEATS)) for _ in range(2))
    assert first == second
    assert first != to_svg(tree_and_gates(WORDS, GOLD, [(0, 5), (1, 5), (2, 5), (3, 5)], HEATS))


@pytest.mark.parametrize(("words", "induced"), [(["yes"], []), (["a", "b"], [(0, 2)])])
def test_short_sentences_without_gold_are_drawn(words, induced):
    found = texts(to_svg(tree_and_gates(words, [], induced, {"layer 1": GATES[: len(words)]})))
    assert [text for text in found if text in words] == words
    assert "gold" not in found


@pytest.mark.parametrize("words", [["$", "5"], ["US$", "CA$5"], ["$x^$", "a"], ["$a$", "b_c"], ["\\", "%"]])
def test_words_are_drawn_as_written_not_as_formulae(words):
    found = texts(to_svg(tree_and_gates(words, [("S", (0, 2))], [(0, 2)], {"layer 1": GATES[:2]})))
    assert [text for text in found if text in words] == words


def test_a_learning_curve_names_its_series():
    found = texts(to_svg(curve([1, 2, 3], {"train": [90.0, 40.0, 30.0], "valid": [80.0, 45.0, 41.25]})))
    assert {"train", "valid", "epoch", "perplexity", "41.2"} <= set(found)


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG\r\n"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_a_figure_is_saved_by_its_ending(tmp_path, name, magic):
    save(tree_and_gates(WORDS, GOLD, INDUCED, HEATS), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)


class Page(HTMLParser):
    """Collects what a page would load, and its text outside of style."""

    def __init__(self, text):
        super().__init__()
        self.resources, self.tags, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        loading = ("src", "srcset", "href", "xlink:href", "data", "poster", "action")
        self.resources += [value for key, value in attrs if key in loading and not (value or "").startswith("#")]

    def handle_data(self, data):
        self.texts.append(data.strip())


def write(path):
    five = {"A": 50.0, "AW": 60.0, "B": 47.25, "B_star": 46.0, "corpus": 40.0}
    names = ("model", "left", "right", "balanced", "random", "upper_bound")
    scores = {name: {key: value - k for key, value in five.items()} for k, name in enumerate(names)}
    parsing = {"sentences": 1234, "algorithm": "unbiased", "layer": 1, "scores": scores}
    results = {
        "perplexity": {"valid": 20.5, "test": 21.75},
        "parsing": parsing,
        "agreement": {"simple": 0.985, "across_object_relative_clause": 0.5},
        "seconds": 61.4,
    }
    metrics = [{"epoch": k, "train_perplexity": 50 / k, "valid_perplexity": 60 / k} for k in (1, 2)]
    sentence = {"words": WORDS, "gold": GOLD, "induced": INDUCED, "gates": {"layer 1": GATES.tolist()}, "f1": 66.6}
    about = {"size": "layers 128-128", "train": "12,000", "command": "gatedrnn demo --seed 1"}
    write_report(path, json.loads(json.dumps(results)), metrics, [sentence, sentence], about)
    return path.read_text(encoding="utf-8")


def test_the_report_is_one_self_contained_page(tmp_path):
    text = write(tmp_path / "report.html")
    page = Page(text)
    assert page.tags[0] == "html" and "script" not in page.tags and "link" not in page.tags
    assert [r for r in page.resources if not r.startswith("data:")] == []
    loaded = re.sub(r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', "", text, flags=re.DOTALL)
    assert "http://" not in loaded and "https://" not in loaded
    assert "@import" not in text and "url(http" not in text
    assert page.tags.count("svg") == 3


def test_the_report_tells_the_figures_it_was_given(tmp_path):
    page = Page(write(tmp_path / "report.html"))
    assert {"47.2", "46.2", "98.5 %", "21.75", "61", "F1 67", "across object relative clause"} <= set(page.texts)
    assert any("1,234 held-out sentences" in text for text in page.texts)


def test_words_that_look_like_markup_are_escaped(tmp_path):
    text = write(tmp_path / "report.html")
    assert "&lt;b&gt;" in text and "dog&amp;cat" in text
    tiles = text.count('<div class="tile"><b>')
    assert text.count("<b>") == tiles == 5
