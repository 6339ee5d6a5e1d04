"""One self-contained page for a demo: `report.html` from results.json, the epochs' metrics and a few drawn sentences."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from gatedrnn.core.files import write_text
from gatedrnn.plots.trees import curve, to_svg, tree_and_gates

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gatedrnn demo: a grammar learned from plain text</title>
<style>
:root { --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --good: #0f766e; --own: #c2410c; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: #f8fafc; }
main { max-width: 1060px; margin: 0 auto; padding: 40px 20px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; } h2 { font-size: 20px; margin: 44px 0 6px; }
p { margin: 6px 0 14px; max-width: 76ch; } .soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 26px 0; }
.tile, .card { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; }
.tile b { display: block; font-size: 30px; line-height: 1.15; color: var(--good); } 
.tile span { color: var(--soft); font-size: 14px; }
.card { margin: 14px 0; overflow-x: auto; } .card svg { height: auto; max-width: 100%; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 7px 14px; align-items: center; }
.bar { background: #eef2f7; border-radius: 5px; height: 16px; }
.bar i { display: block; height: 100%; border-radius: 5px; background: #a8b3c2; }
.bar i.model { background: var(--good); } .num { font-variant-numeric: tabular-nums; text-align: right; }
table { border-collapse: collapse; width: 100%; } th, td { padding: 5px 10px; text-align: right;
border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr.model td { font-weight: 700; color: var(--good); }
.key i { display: inline-block; width: 22px; height: 4px; border-radius: 2px;
vertical-align: middle; margin: 0 6px 0 14px; }
</style></head><body><main>
<h1>A grammar learned from plain text</h1>
<p>An ordered-neurons LSTM ($size) read $train sentences of the built-in grammar, as words alone. No tree was ever shown to it.
Below is what it learned, measured on sentences it had not seen.</p>
<div class="tiles">
<div class="tile"><b>$f1</b><span>F1 of its trees (protocol B, $algorithm, layer $layer)</span></div>
<div class="tile"><b>$best</b><span>best trivial parser ($best_name)</span></div>
<div class="tile"><b>$simple</b><span>accuracy, simple agreement</span></div>
<div class="tile"><b>$perplexity</b><span>test perplexity</span></div>
<div class="tile"><b>$seconds</b><span>seconds, all of it</span></div>
</div>
<h2>Learning</h2><div class="card">$curve</div>
<h2>Trees beside trivial parsers</h2>
<p>Unlabelled F1 in percent over $sentences held-out sentences. The layer was fixed beforehand; the upper bound is the best any
binary tree can reach against these gold trees.</p>
<div class="card bars">$bars</div>
<div class="card"><table><tr><th>trees</th><th>A</th><th>AW</th><th>B</th><th>B*</th><th>corpus</th></tr>$rows</table></div>
<h2>Agreement at a distance</h2>
<p>Share of sentence pairs in which the sentence whose verb agrees is the more probable one; chance is 50&nbsp;%.</p>
<div class="card bars">$agreement</div>
<h2>Ten test sentences</h2>
<p class="key">The first ten of the test text with at least six words.
Gold tree above the words, induced tree below; under each word
the master forget gate that the tree is read from.
<i style="background:var(--good)"></i>in both trees <i style="background:var(--own)"></i>in one alone</p>
$cards
<p class="soft">Made by <code>$command</code>; figures in <code>results.json</code>.</p>
</main></body></html>
""")


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
        sentences: each with words, gold [(label, span)], induced [span], gates [words, units] and f1 in percent.
        about: size, train (sentences), command: texts for the page.
    """
    parsing = results["parsing"]
    scores = parsing["scores"]
    trivial = {name: s["B"] for name, s in scores.items() if name not in ("model", "upper_bound")}
    best = max(trivial, key=lambda name: trivial[name])
    epochs = [record["epoch"] for record in metrics]
    lines = {kind: [record[f"{kind}_perplexity"] for record in metrics] for kind in ("train", "valid")}
    shown = {"model": "model"} | {name: name.replace("_", " ") for name in scores if name != "model"}
    page = PAGE.substitute(
        about,
        f1=f"{scores['model']['B']:.1f}",
        algorithm=parsing["algorithm"],
        layer=parsing["layer"],
        best=f"{trivial[best]:.1f}",
        best_name=shown[best],
        simple=f"{100 * results['agreement']['simple']:.1f} %",
        perplexity=f"{results['perplexity']['test']:.2f}",
        seconds=f"{results['seconds']:.0f}",
        sentences=f"{parsing['sentences']:,}",
        curve=to_svg(curve(epochs, lines)),
        bars="".join(_bar(shown[name], scores[name]["B"], name == "model") for name in shown),
        rows="".join(_row(shown[name], scores[name], name == "model") for name in shown),
        agreement="".join(
            _bar(name.replace("_", " "), 100 * value, True) for name, value in results["agreement"].items()
        ),
        cards="".join(_card(sentence) for sentence in sentences),
    )
    write_text(path, page)


def _bar(name: str, percent: float, model: bool) -> str:
    kind = ' class="model"' if model else ""
    bar = f'<div class="bar"><i{kind} style="width:{percent:.2f}%"></i></div>'
    return f'<div>{escape(name)}</div>{bar}<div class="num">{percent:.1f}</div>'


def _row(name: str, scores: dict[str, float], model: bool) -> str:
    cells = "".join(f"<td>{value:.2f}</td>" for value in scores.values())
    return f"<tr{' class=model' if model else ''}><td>{escape(name)}</td>{cells}</tr>"


def _card(sentence: dict[str, Any]) -> str:
    picture = to_svg(tree_and_gates(sentence["words"], sentence["gold"], sentence["induced"], sentence["gates"]))
    return f'<div class="card"><div class="soft">F1 {sentence["f1"]:.0f}</div>{picture}</div>'
