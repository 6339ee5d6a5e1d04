"""One self-contained page for a demo: `report.html` from results.json, the epochs' metrics and a few drawn sentences."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from gatedrnn.core.files import write_text
from gatedrnn.plots.numbers import PROTOCOLS, in_words
from gatedrnn.plots.page import KEY, bars, page, sentence_card, table, tiles
from gatedrnn.plots.trees import curve, to_svg


def write_report(
    path: Path,
    results: dict[str, Any],
    metrics: Sequence[dict[str, Any]],
    sentences: Sequence[dict[str, Any]],
    about: dict[str, Any],
) -> None:
    """Write the page, atomically.

    Args:
        results: as `results.json`.
        metrics: one record an epoch, as metrics.jsonl.
        sentences: as `sentence_card` draws them.
        about: size, train (sentences), command: texts for the page.
    """
    parsing = results["parsing"]
    scores = parsing["scores"]
    trivial = {name: s["B"] for name, s in scores.items() if name not in ("model", "upper_bound")}
    best = max(trivial, key=lambda name: trivial[name])
    epochs = [record["epoch"] for record in metrics]
    lines = {kind: [record[f"{kind}_perplexity"] for record in metrics] for kind in ("train", "valid")}
    shown = [(in_words(name), found, name == "model") for name, found in scores.items()]
    rows = [(title, [f"{value:.2f}" for value in found.values()], model) for title, found, model in shown]
    size, read, tested = escape(about["size"]), escape(about["train"]), parsing["sentences"]
    numbers = {
        f"F1 of its trees (protocol B, {parsing['algorithm']}, layer {parsing['layer']})": f"{scores['model']['B']:.1f}",
        f"best trivial parser ({in_words(best)})": f"{trivial[best]:.1f}",
        "accuracy, simple agreement": f"{100 * results['agreement']['simple']:.1f} %",
        "test perplexity": f"{results['perplexity']['test']:.2f}",
        "seconds in total": f"{results['seconds']:.0f}",
    }
    body = f"""<p>An ordered-neurons LSTM ({size}) read {read} sentences of the built-in grammar,
as words alone. No tree was ever shown to it. Below is what it learned, measured on sentences it had not seen.</p>
{tiles(numbers)}
<h2>Learning</h2><div class="card">{to_svg(curve(epochs, lines))}</div>
<h2>Trees compared with trivial parsers</h2>
<p>Unlabelled F1 in percent over {tested:,} held-out sentences. The layer was fixed beforehand; the upper bound is
the best any binary tree can reach against these gold trees.</p>
{bars((title, found["B"], model) for title, found, model in shown)}
{table(("trees", *PROTOCOLS), rows)}
<h2>Agreement at a distance</h2>
<p>Share of sentence pairs in which the sentence whose verb agrees is the more probable one; the mark is chance.</p>
{bars(((in_words(name), 100 * value, True) for name, value in results["agreement"].items()), chance=50)}
<h2>What is still wrong</h2>
<p>The same for sentences that nest one level deeper than any sentence of the text does, and the first pair of each kind that the
model judges wrongly.</p>
{bars(((in_words(name), 100 * one["accuracy"], True) for name, one in results["deeper"].items()), chance=50)}
{_wrong(results["deeper"])}
<h2>Ten test sentences</h2>
<p>The first ten of the test text with at least six words.</p>
{KEY.format(below="; under it the master forget gate that the tree is read from")}
{"".join(map(sentence_card, sentences))}"""
    write_text(path, page("A grammar learned from plain text", body, about["command"]))


def _wrong(deeper: dict[str, Any]) -> str:
    """A table of the pairs that were judged wrongly."""
    rows = [(in_words(name), one["wrong"], False) for name, one in deeper.items() if one["wrong"]]
    if not rows:
        return "<p>Every pair is judged correctly.</p>"
    return table(("construction", "right", "the model prefers"), rows)
