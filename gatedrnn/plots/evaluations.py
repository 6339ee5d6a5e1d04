"""The pages of `eval-parsing` and `eval-syntax`, from their results."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gatedrnn.core.files import write_text, write_with
from gatedrnn.plots.numbers import PROTOCOLS, in_words, interval, judged_cells, percent, score
from gatedrnn.plots.page import KEY, bars, card, draw, page, sentence_card, table, tiles
from gatedrnn.plots.trees import length_curves, save, to_svg


def write_parsing_report(
    folder: Path,
    results: Mapping[str, Any],
    rows: Sequence[tuple[str, Mapping[str, float | None]]],
    sentences: Sequence[Mapping[str, Any]],
    about: Mapping[str, str],
) -> None:
    """Write `report.html` and its figures as PDF into `folder`, each atomically.

    Args:
        results: as `eval-parsing --json` prints them, by_length among them.
        rows: of the table of scores.
        sentences: as `sentence_card` draws them.
        about: how (what was read and chosen), treebank, command, and row (the name of the one to stress): texts for the page.
    """
    scores, intervals = results["scores"], results.get("intervals", {})
    others = {name: s["B"] for name, s in scores.items() if name not in ("model", "upper_bound")}
    trivial = {name: value for name, value in others.items() if value is not None}
    best = max(trivial, key=lambda name: trivial[name], default=None)
    said = {f"F1 of the trees (protocol B, {results['algorithm']})": _shown(scores, "model")}
    said |= {f"best trivial parser ({in_words(best)})": f"{trivial[best]:.1f}"} if best else {}
    said |= {"best score that binary trees can reach": _shown(scores, "upper_bound")}
    said |= {"sentences": f"{results['sentences']:,}"}
    figure, columns = _lengths(results["by_length"]), ("trees", *PROTOCOLS)
    body = [
        f"<p>{escape(about['how'])}</p>",
        tiles({k: v for k, v in said.items() if v}),
        "<h2>Unlabelled F1</h2>",
        bars((in_words(name), s["B"], name == "model") for name, s in scores.items()),
        table(columns, ((name, [score(v, 2) for v in s.values()], name == about["row"]) for name, s in rows)),
    ]
    if intervals:
        ranges = ((in_words(name), list(map(interval, by.values())), name == "model") for name, by in intervals.items())
        body += ["<p>95 % intervals over bootstrap samples of the sentences:</p>", table(columns, ranges)]
    body += ["<h2>By length</h2>", card("F1 by protocol B", to_svg(figure))]
    body += _recall(results["label_recall"]) + _agreement(results) + _depth(results["depth"])
    if sentences:
        gates = "; under it the distance at each boundary and the master gate of every layer, of the first run"
        below = gates if any(one["gates"] for one in sentences) else ""
        body += ["<h2>Sentences</h2>", KEY.format(below=below), *map(sentence_card, sentences)]
    earlier = (folder / "report.html").exists()
    pictures = {"f1-by-length": figure} | {f"sentence-{k}": draw(one) for k, one in enumerate(sentences, 1)}
    for name, picture in pictures.items():
        write_with(folder / f"{name}.pdf", partial(save, picture, kind="pdf"))
    write_text(folder / "report.html", page(f"Trees of {about['treebank']}", "\n".join(body), about["command"]))
    left = map(folder.joinpath, (f"sentence-{k}.pdf" for k in count(len(sentences) + 1)))
    for old in takewhile(Path.exists, left if earlier else ()):  # of an earlier report that drew more
        old.unlink()


def write_syntax_report(folder: Path, results: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> None:
    """Write `report.html` of minimal pairs into `folder`, atomically.

    Args: results: by run, as `eval-syntax --json` prints one; about: how, pairs and command: texts for the page.
    """
    means = {name: percent(found["macro_accuracy"]) for name, found in results.items()}
    first, *_ = results.values()
    body = [
        f"<p>{escape(about['how'])}</p>",
        tiles({f"mean accuracy in percent, {name}": v for name, v in means.items()}),
    ]
    for name, found in results.items():
        shares = {title: judged["accuracy"] for title, judged in found["phenomena"].items()}
        rows = [(title, None if share is None else 100 * share, True) for title, share in shares.items()]
        body += [f"<h2>{escape(name)}</h2>", bars(rows, chance=50)]
    counted = ("pairs", "skipped", "identical")
    cells = []
    for title in first["phenomena"]:
        each = [found["phenomena"][title] for found in results.values()]
        cells.append((title, judged_cells(each, counted), False))
    cells.append(("mean", [*means.values(), "", "", ""], True))
    body += ["<h2>All scores</h2>", table(("phenomenon", *results, *counted), cells)]
    write_text(folder / "report.html", page(f"Minimal pairs of {about['pairs']}", "\n".join(body), about["command"]))


def _shown(scores: Mapping[str, Mapping[str, float | None]], name: str) -> str:
    return score(scores[name]["B"]) if name in scores else ""


def _lengths(parts: Mapping[str, Any]) -> Figure:
    series = {
        in_words(name): [math.nan if (b := part["scores"][name]["B"]) is None else b for part in parts.values()]
        for name in next(iter(parts.values()))["scores"]
    }
    return length_curves(list(parts), [part["sentences_B"] for part in parts.values()], series)


def _recall(recall: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = [(f"{label} ({found['count']:,})", found["recall"], True) for label, found in list(recall.items())[:15]]
    if not rows:
        return []
    told = "<p>Share of gold constituents that were found (number of gold constituents).</p>"
    return ["<h2>Recall by label</h2>", told, bars(rows)]


def _agreement(results: Mapping[str, Any]) -> list[str]:
    if "voters" not in results:
        return []
    names = [
        f"{k}: {voter['run']}, "
        + (f"layer {voter['layer']}, {in_words(voter['gate'])}" if voter["gate"] else "grammar")
        for k, voter in enumerate(results["voters"], 1)
    ]
    rows = [(name, [score(v) for v in row], False) for name, row in zip(names, results["agreement"], strict=True)]
    columns = ("voter", *(str(k) for k in range(1, len(names) + 1)))
    return [
        "<h2>Agreement of the voters</h2>",
        "<p>F1 of each voter's trees against those of every other voter.</p>",
        table(columns, rows),
    ]


def _depth(depths: Mapping[str, float]) -> list[str]:
    rows = [(in_words(name), [f"{value:.1f}"], name == "model") for name, value in depths.items()]
    return [
        "<h2>Depth</h2>",
        "<p>The largest number of constituents above one word, averaged over sentences.</p>",
        table(("trees", "depth"), rows),
    ]
