"""What the pages of a demo and of an evaluation share: one self-contained HTML page, tiles, bars and tables."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

from gatedrnn.plots.numbers import score
from gatedrnn.plots.trees import to_svg, tree_and_gates
from gatedrnn.plots.xml import well_formed

_STYLE = """
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
.bar { background: #eef2f7; border-radius: 5px; height: 16px; position: relative; }
.bar i { display: block; height: 100%; border-radius: 5px; background: #a8b3c2; }
.bar i.model { background: var(--good); } .num { font-variant-numeric: tabular-nums; text-align: right; }
.bar s { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink); opacity: .45; }
table { border-collapse: collapse; width: 100%; } th, td { padding: 5px 10px; text-align: right;
border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr.model td { font-weight: 700; color: var(--good); }
.key i { display: inline-block; width: 22px; height: 4px; border-radius: 2px;
vertical-align: middle; margin: 0 6px 0 14px; }
"""

KEY = """<p class="key">Gold tree above the words, induced tree below{below}.
<i style="background:var(--good)"></i>in both trees <i style="background:var(--own)"></i>in only one tree</p>"""


def page(title: str, body: str, made_by: str) -> str:
    """The HTML of a page; `body` is HTML, title and `made_by` (a command) are text."""
    return well_formed(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
{body}
<p class="soft">Made by <code>{escape(made_by)}</code>; figures in <code>results.json</code>.</p>
</main></body></html>
""")


def tiles(values: Mapping[str, str]) -> str:
    """Large values, each with its name below."""
    inner = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in values.items())
    return f'<div class="tiles">{inner}</div>'


def bars(rows: Iterable[tuple[str, float | None, bool]], *, chance: float | None = None) -> str:
    """A bar a row, (name, percent, whether it is the model's); a mark at `chance`; a dash for None."""
    mark = "" if chance is None else f'<s style="left:{chance:.2f}%"></s>'
    return f'<div class="card bars">{"".join(_bar(*row, mark) for row in rows)}</div>'


def _bar(name: str, percent: float | None, model: bool, mark: str) -> str:
    kind = ' class="model"' if model else ""
    bar = f'<div class="bar"><i{kind} style="width:{percent or 0:.2f}%"></i>{mark}</div>'
    return f'<div>{escape(name)}</div>{bar}<div class="num">{score(percent)}</div>'


def table(columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str], bool]]) -> str:
    """A table whose first column names the rows, (name, cells, whether it is the model's)."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{' class=model' if model else ''}><td>{escape(name)}</td>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells, model in rows
    )
    return f'<div class="card"><table><tr>{head}</tr>{body}</table></div>'


def card(caption: str, picture: str) -> str:
    """A picture (HTML) under its caption."""
    return f'<div class="card"><div class="soft">{escape(caption)}</div>{picture}</div>'


def sentence_card(sentence: Mapping[str, Any]) -> str:
    """One drawn sentence: words, gold [(label, span)], induced [span], gates {name: [words, units]}, f1 in percent, and
    distances [words] if there are any."""
    return card(f"F1 {sentence['f1']:.0f}", to_svg(draw(sentence)))


def draw(sentence: Mapping[str, Any]) -> Figure:
    """The picture of a sentence as in `sentence_card`."""
    distances = sentence.get("distances", ())
    return tree_and_gates(sentence["words"], sentence["gold"], sentence["induced"], sentence["gates"], distances)
