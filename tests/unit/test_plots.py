"""Figures and the demo's page."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

import numpy as np
import pytest
from page import Page
from scripts import benchmark

from gatedrnn.plots.accuracy import by_operators
from gatedrnn.plots.compression import change_by_bytes
from gatedrnn.plots.evaluations import write_syntax_report
from gatedrnn.plots.gates import COLORS
from gatedrnn.plots.page import draw
from gatedrnn.plots.report import write_report
from gatedrnn.plots.sweep import curves as trial_curves
from gatedrnn.plots.trees import AGREED, OWN, curve, length_curves, save, to_svg, tree_and_gates

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


def test_curves_by_length_show_each_parsers_values_over_the_buckets():
    series = {"model": [60.0, 41.5], "right": [55.0, 38.0], "upper bound": [88.0, 86.25], "a_b": [1.0, 2.0]}
    figure = length_curves(["1–10", "11–20"], [505, 1040], series)
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == series and list(axes.lines[0].get_xdata()) == [0, 1]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1–10\n(505)", "11–20\n(1040)"]
    widths, colors = zip(*((line.get_linewidth(), line.get_color()) for line in axes.lines), strict=True)
    assert widths[0] > max(widths[1:]) and len(set(colors)) == 4
    found = texts(to_svg(figure))
    assert set(series) | {"F1, protocol B", "1–10", "(505)", "11–20", "(1040)"} <= set(found)


def test_many_curves_and_one_bucket_are_drawn():
    series = {f"parser {k}": [float(k)] for k in range(12)}
    (axes,) = length_curves(["1–10"], [3], series).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[float(k)] for k in range(12)]


SENTENCE = {"words": WORDS, "gold": GOLD, "induced": INDUCED, "gates": HEATS, "f1": 66.6}
DISTANCES = [0.9, 0.25, 0.5, 0.125, 0.75]


def test_a_sentence_is_drawn_with_a_bar_at_every_boundary():
    plain, figure = draw(SENTENCE), draw(SENTENCE | {"distances": DISTANCES})
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for axes in figure.axes for bar in axes.patches]
    assert bars == [(pytest.approx(k + 0.5), height) for k, height in enumerate(DISTANCES[1:])]
    assert not [bar for axes in plain.axes for bar in axes.patches]
    with_distances, without = texts(to_svg(figure)), texts(to_svg(plain))
    assert "distance" in with_distances and "distance" not in without
    assert [text for text in with_distances if text != "distance"] == without
    assert without == texts(to_svg(tree_and_gates(WORDS, GOLD, INDUCED, HEATS)))


def test_every_gate_is_drawn_unit_by_unit():
    images = [image.get_array() for axes in draw(SENTENCE).axes for image in axes.images]
    for image, values in zip(images, HEATS.values(), strict=True):
        np.testing.assert_array_equal(image, np.transpose(values))


def test_constituents_in_both_trees_and_in_one_alone_differ_in_color():
    top, _, below, *_ = draw(SENTENCE).axes
    for axes in (top, below):  # a line for each of two children: three constituents are in both trees, one is not
        assert Counter(line.get_color() for line in axes.lines) == {AGREED: 6, OWN: 2}


@pytest.mark.parametrize("words", [1, 2])
def test_a_sentence_of_few_words_and_its_distances_are_drawn(words):
    sentence = {"words": WORDS[:words], "gold": [], "induced": [(0, 2)][: words - 1], "gates": {}}
    figure = draw(sentence | {"distances": DISTANCES[:words]})
    assert len([bar for axes in figure.axes for bar in axes.patches]) == words - 1
    assert [text for text in texts(to_svg(figure)) if text in WORDS] == WORDS[:words]


@pytest.mark.parametrize(
    ("name", "magic"),
    [("a.png", b"\x89PNG\r\n"), ("a", b"\x89PNG\r\n"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")],
)
def test_a_figure_is_saved_by_its_ending(tmp_path, name, magic):
    save(tree_and_gates(WORDS, GOLD, INDUCED, HEATS), tmp_path / name)
    (path,) = tmp_path.iterdir()
    saved = path.read_bytes()
    assert path.stem == "a" and saved.startswith(magic) and b"CreationDate" not in saved and b"dc:date" not in saved


def write(path):
    five = {"A": 50.0, "AW": 60.0, "B": 47.25, "B_star": 46.0, "corpus": 40.0}
    names = ("model", "left", "right", "balanced", "random", "upper_bound")
    scores = {name: {key: value - k for key, value in five.items()} for k, name in enumerate(names)}
    parsing = {"sentences": 1234, "algorithm": "unbiased", "layer": 1, "scores": scores}
    results = {
        "perplexity": {"valid": 20.5, "test": 21.75},
        "parsing": parsing,
        "agreement": {"simple": 0.985, "across_object_relative_clause": 0.5},
        "deeper": {
            "one": {"accuracy": 0.75, "wrong": ["<b>dogs bark", "dogs <i>barks"]},
            "two": {"accuracy": 1, "wrong": None},
        },
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
    assert page.tags[0] == "html" and page.loaded == []
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


def test_the_page_of_minimal_pairs_tells_every_run_and_phenomenon(tmp_path):
    def judged(accuracy, pairs, skipped, identical):
        return {"accuracy": accuracy, "pairs": pairs, "skipped": skipped, "identical": identical}

    results = {
        "runs/a": {"phenomena": {"<i>agreement": judged(0.625, 1600, 3, 0), "none": judged(None, 0, 7, 0)}},
        "runs/b": {"phenomena": {"<i>agreement": judged(0.75, 1500, 3, 100), "none": judged(None, 0, 7, 0)}},
    }
    for name, mean in (("runs/a", 0.625), ("runs/b", None)):
        results[name]["macro_accuracy"] = mean
    about = {"how": "read & judged", "pairs": "a<b>.jsonl", "command": "gatedrnn eval-syntax runs/a"}
    write_syntax_report(tmp_path, results, about)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    said = [text for text in page.texts if text]
    assert page.loaded == [] and {"read & judged", "Minimal pairs of a<b>.jsonl", "gatedrnn eval-syntax runs/a"} <= set(
        said
    )
    assert {"62.5", "mean accuracy in percent, runs/a", "–", "mean accuracy in percent, runs/b"} <= set(said)
    rows = said[said.index("All scores") + 1 :]
    assert rows[:6] == ["phenomenon", "runs/a", "runs/b", "pairs", "skipped", "identical"]
    assert rows[6:12] == ["<i>agreement", "62.5", "75.0", "1,600 / 1,500", "3", "0 / 100"]
    assert rows[12:18] == ["none", "–", "–", "0", "7", "0"] and rows[18:21] == ["mean", "62.5", "–"]


def test_change_by_bytes_marks_every_scheme_of_every_run(tmp_path):
    def rows(*changes):
        names = ("original", "SVD (rank 4)", "int8")
        return [
            {"scheme": name, "bytes": 100 - 30 * k, "change_percent": change}
            for k, (name, change) in enumerate(zip(names, changes, strict=True))
        ]

    figure = change_by_bytes({"one": rows(0.0, 5.0, 0.1), "two": rows(0.0, float("inf"), -0.5)})
    axes = figure.axes[0]
    marks = [tuple(float(value[0]) for value in line.get_data()) for line in axes.lines if len(line.get_xdata()) == 1]
    assert marks == [(70, 5.0), (40, 0.1), (70, 100.0), (40, -0.5)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two", "SVD", "int8"]
    save(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000


def test_eight_models_have_eight_colors():
    assert len({*COLORS}) == len(COLORS) == 8


def test_accuracy_by_operators_overlays_models_over_the_most_frequent_label():
    from gatedrnn.plots.accuracy import by_operators

    runs = {name: {"majority": 53.0, "by_operators": {"0": {"accuracy": 100.0}, "7": {"accuracy": low}}}
            for name, low in (("one", 80.0), ("two", 60.0))}  # fmt: skip
    (axes,) = by_operators(runs).axes
    assert [line.get_label() for line in axes.lines[:2]] == ["one", "two"]
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[0, 100], [7, 80]],
        [[0, 100], [7, 60]],
        [[0, 53], [1, 53]],
    ]


def test_attention_is_drawn_with_gates_under_the_source_and_beside_the_translation():
    from gatedrnn.plots.gates import attention_and_gates

    source, target = (
        (["ein", "Haus"], {"1 forward input gate": [0.1, 0.2]}),
        (["a", "house", "<eos>"], {"1 forget gate": [0.3, 0.4, 0.5]}),
    )
    figure = attention_and_gates(source, target, [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    attention, beside, below, _ = figure.axes
    assert [text.get_text() for text in attention.texts] == ["0.90", "0.10", "0.20", "0.80", "0.50", "0.50"]
    assert [label.get_text() for label in attention.get_yticklabels()] == ["a", "house", "<eos>"]
    assert [label.get_text() for label in attention.get_xticklabels()] == ["ein", "Haus"]
    assert [text.get_text() for text in beside.texts] == ["0.30", "0.40", "0.50"]
    assert [text.get_text() for text in below.texts] == ["0.10", "0.20"]


def test_words_are_drawn_with_a_font_that_has_their_letters(tmp_path, monkeypatch, recwarn):
    import gatedrnn.plots.fonts as fonts

    math = [each for each in fonts._installed() if each.name in ("STIXGeneral", "STIXNonUnicode")]
    monkeypatch.setattr(fonts, "_installed", lambda: math)
    figure = tree_and_gates(["the", "ᶁog"], [], [(0, 2)], {})
    save(figure, tmp_path / "a.png")
    families = {text.get_text(): text.get_fontfamily() for axes in figure.axes for text in axes.texts}
    assert not recwarn.list
    assert families["the"] == ["sans-serif"] and families["ᶁog"] == ["sans-serif", "STIXGeneral"]


def test_letters_that_no_font_has_are_told_in_one_line_and_once(tmp_path, recwarn):
    for kind in ("png", "pdf"):
        save(tree_and_gates(["a", "\U000f0001\U000f0002"], [], [(0, 2)], {}), tmp_path / f"a.{kind}")
    assert not recwarn.list  # private letters cannot be printed anywhere
    for kind in ("png", "pdf"):
        save(tree_and_gates(["a", "\U00012345"], [], [(0, 2)], {}), tmp_path / f"a.{kind}")
    told = [str(each.message) for each in recwarn.list if "no installed font has" in str(each.message)]
    assert len(told) == len(recwarn.list) <= 1  # none where a font of cuneiform is installed


def test_fonts_that_are_gone_are_passed_over(tmp_path, monkeypatch):
    import gatedrnn.plots.fonts as fonts

    gone = fonts.font_manager.FontEntry(
        fname=str(tmp_path / "gone.ttf"), name="A gone font", style="normal", weight=400
    )
    monkeypatch.setattr(fonts.font_manager.fontManager, "ttflist", [gone, *fonts.font_manager.fontManager.ttflist])
    save(tree_and_gates(["the", "ᶁog"], [], [(0, 2)], {}), tmp_path / "a.png")


def test_an_svg_warns_of_no_letter(recwarn):
    to_svg(tree_and_gates(["a", "\U00012345"], [], [(0, 2)], {}))
    assert not recwarn.list


def names(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_no_two_trials_of_a_sweep_look_alike():
    lines = [(f"seed={k}", k, k in (1, 9), [(1.0, 5.0 + k), (2.0, 4.0 + k)]) for k in range(1, 21)]
    (axes,) = trial_curves(lines, "perplexity", lower=True).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()]
    assert len(set(looks)) == 20 and looks[0][0] != looks[8][0] and names(axes.get_legend()) == ["seed=1", "seed=9"]
    assert len(trial_curves([(f"{k}", k, True, lines[0][3]) for k in range(40)], "x", lower=True).axes) == 1


def test_legends_name_runs_that_begin_with_an_underscore(tmp_path, monkeypatch):
    accuracy = {"majority": 53.0, "by_operators": {"0": {"accuracy": 100.0}}}
    (axes,) = by_operators({"_one": accuracy, "two": accuracy}).axes
    assert names(axes.get_legend()) == ["_one", "two"]
    figure = by_operators({"a$x_{$": accuracy, "a$b$": accuracy})
    assert {"a$x_{$", "a$b$"} <= set(texts(to_svg(figure)))
    trials = [(f"rate={name}", k, True, [(1.0, 5.0), (2.0, 4.0)]) for k, name in enumerate(("$x_{$", "_1"))]
    assert {"rate=$x_{$", "rate=_1"} <= set(texts(to_svg(trial_curves(trials, "perplexity", lower=True))))
    rows = [{"scheme": name, "bytes": 9, "change_percent": 1.0} for name in ("original", "int8")]
    assert names(change_by_bytes({"_one": rows, "int8": rows}).legends[0]) == ["_one", "int8", "int8"]
    line = {"seconds": 60.0, "valid_perplexity": 100.0, "train_perplexity": 120.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    curves = benchmark("curves")
    monkeypatch.setattr(sys, "argv", ["curves.py", "--out", str(tmp_path / "x.svg"), f"_a={tmp_path}"])
    curves.main()
    assert names(curves.plt.gca().get_legend()) == ["_a, validation: 100.00", "_a, training"]
    curves.plt.close()
