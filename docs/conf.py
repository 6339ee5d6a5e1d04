"""Sphinx configuration, and what these pages read off the code: cell pages, configuration tables, the grammar."""

import ast
import inspect
import json
import re
import sys
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

import gatedrnn
from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.cells import Cell
from gatedrnn.core.config import to_dict
from gatedrnn.data import CONSTRUCTIONS, DEEPER, DataConfig, grammar
from gatedrnn.data.config import PairDataConfig, ParallelDataConfig
from gatedrnn.layers import RecurrentBase
from gatedrnn.models import LanguageModelConfig, PairClassifierConfig, TranslationConfig
from gatedrnn.models.grammar import GrammarConfig
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.teacher import DistilConfig
from gatedrnn.training.config import TrainingConfig

project = "gatedrnn"
version = release = gatedrnn.__version__
html_title = f"{project} {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
smartquotes = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"

SECTION = re.compile(r"(Equations|Args|Returns|Raises): *(.*)")
EXAMPLE = {"input_size": 4, "hidden_size": 8}


def read_docstring(text: str) -> list[tuple[str, list[str]]]:
    """The house's docstring form as (section or "", entries), in order."""
    parts: list[tuple[str, list[str]]] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines: list[str] = []
        title, inline = "", False
        for line in [*block.splitlines(), "Args:"]:  # the last line only closes what is open
            head = SECTION.fullmatch(line)
            if not head:
                lines.append(line)
                continue
            if entries := _entries(lines, inline or not title):
                parts.append((title, entries))
            title, inline = head[1], bool(head[2])
            lines = [head[2]] if inline else []
    return parts


def _entries(lines: list[str], together: bool) -> list[str]:
    if together:
        return [" ".join(line.strip() for line in lines)] if lines else []
    entries: list[str] = []
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    return entries


def _outside_code(text: str, special: str, code: str) -> str:
    """Escape the characters of `special` outside backticks, and write `code`-style quotes around what is inside."""
    pieces = text.split("`")
    plain = [re.sub(f"([{special}])", r"\\\1", piece) for piece in pieces[::2]]
    quoted = [f"{code}{piece}{code}" for piece in pieces[1::2]]
    return "".join(a + b for a, b in zip(plain, [*quoted, ""], strict=True))


def markdown(text: str) -> list[str]:
    """A docstring as Markdown lines."""
    lines = []
    for title, entries in read_docstring(text):
        if title == "Raises" and entries[0].startswith("nothing"):
            continue
        shown = [_outside_code(entry, r"*<$", "`") for entry in entries]
        if not title:
            lines += [*shown, ""]
        elif len(shown) == 1:
            lines += [f"**{title}.** {shown[0]}", ""]
        else:
            lines += [f"**{title}.**", "", *(f"- {entry}" for entry in shown), ""]
    return lines


def rst_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """autodoc's hook: the same as reStructuredText."""
    written: list[str] = []
    for title, entries in read_docstring("\n".join(lines)):
        shown = [re.sub(r"_(?=\W|$)", r"\\_", _outside_code(entry, r"*|", "``")) for entry in entries]
        if not title:
            written += [*shown, ""]
        elif len(shown) == 1:
            written += [f"**{title}.** {shown[0]}", ""]
        else:
            written += [f"**{title}.**", "", *(f"- {entry}" for entry in shown), ""]
    lines[:] = written


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *cells])


def config_table(kind: type, left: str = "") -> str:
    """Key, type, default and meaning of every field of a configuration dataclass but `left`."""
    entries = dict(read_docstring(kind.__doc__ or ""))["Args"]
    meaning = dict(entry.split(": ", 1) for entry in entries)
    defaults = to_dict(kind())
    rows = []
    for field in (each for each in fields(kind) if each.name != left):
        name = getattr(field.type, "__name__", "")
        hint = name if isinstance(field.type, type) else str(field.type)
        hint = re.sub(r"[\w.]+\.(?=\w)", "", hint)
        default = json.dumps(defaults[field.name]).strip('"')
        rows.append([f"`{field.name}`", f"`{hint}`", f"`{default}`", _outside_code(meaning[field.name], r"*<$", "`")])
    return table(["key", "type", "default", "meaning"], rows)


def defaults_by_task() -> str:
    """What a task trains with unless told otherwise, where that differs from language modelling."""
    every = {name: to_dict(task.training) for name, task in TASKS.items()}
    plain = to_dict(TrainingConfig())
    keys = [key for key in plain if any(each[key] != plain[key] for each in every.values())]
    rows = [[f"`{key}`", *(f"`{json.dumps(each[key])}`".replace('"', "") for each in every.values())] for key in keys]
    return table(["key", *every], rows)


def lexicon_table() -> str:
    """The grammar's terminals."""
    rows = [[f"`{symbol}`", f"`{tag}`", words] for symbol, (tag, words) in grammar.LEXICON.items()]
    return table(["symbol", "tag", "words"], rows)


myst_substitutions = {
    "config_data": config_table(DataConfig),
    "config_parallel": config_table(ParallelDataConfig),
    "config_pairs": config_table(PairDataConfig),
    "config_translation": config_table(TranslationConfig),
    "config_classifier": config_table(PairClassifierConfig),
    "config_grammar": config_table(GrammarConfig),
    "config_model": config_table(LanguageModelConfig),
    "config_training": config_table(TrainingConfig),
    "defaults_by_task": defaults_by_task(),
    "config_gates": config_table(Gates),
    "config_distil": config_table(DistilConfig, left="layer"),  # which is `model.tree_layer`
    "grammar_rules": f"```text\n{grammar.RULES.strip()}\n```",
    "grammar_lexicon": lexicon_table(),
    "grammar_max_words": str(grammar.MAX_WORDS),
    "constructions": table(["construction", "pattern"], [[f"`{n}`", f"`{p}`"] for n, p in CONSTRUCTIONS.items()]),
    "deeper": table(["construction", "pattern"], [[f"`{n}`", f"`{p}`"] for n, p in DEEPER.items()]),
}


def cell_page(name: str, cell: Cell) -> str:
    """The page of one cell, all of it read off the registry."""
    layer = Recurrent(cell, **EXAMPLE)
    _, _, (trace,) = layer(torch.zeros(1, 1, EXAMPLE["input_size"]), return_gates=True)
    module = next((m for m in _modules() if vars(m).get("CELL") is cell), inspect.getmodule(cell.step))
    perturbed = cell.make_spec(EXAMPLE["hidden_size"]).perturbed(Gates())
    gates = [
        [str(k), f"`{gate.name}`", str(gate.rows), f"`{gate.squash}`", "yes" if gate.name in perturbed else "no"]
        for k, gate in enumerate(layer.spec.gates, 1)
    ]
    sizes = f"input_size={EXAMPLE['input_size']}, hidden_size={EXAMPLE['hidden_size']}"
    lines = [f"# {cell.title}", "", *markdown(module.__doc__ or ""), *_used_as(name, cell), ""]
    lines += [f"## Gates in row order ({sizes})", "", *markdown(cell.make_spec.__doc__ or "")]
    lines += [table(["block", "name", "rows", "squashing", "perturbed if `Gates.names` is None"], gates), ""]
    lines += [f"States: {', '.join(f'`{state}`' for state in layer.spec.states)}.", ""]
    if cell.gates != Gates():
        lines += [f"Default perturbation of the cell: `{cell.gates}`.", ""]
    if cell.options:
        inside = cell.options | cell.advised
        options = [[f"`{key}`", f"`{value!r}`", f"`{inside[key]!r}`"] for key, value in cell.options.items()]
        lines += ["## Options", "", table(["option", "default", "in a language model"], options), ""]
    lines += ["## Step", "", *markdown(cell.step.__doc__ or ""), "```python", _without_docstring(cell), "```", ""]
    shapes = [[f"`{key}`", f"`{list(value.shape)}`"] for key, value in layer.state_dict().items()]
    lines += [f"## Parameters ({sizes}, one layer)", "", table(["name", "shape"], shapes), ""]
    lines += ["## Trace", "", "Gates that `return_gates=True` returns, with the size of their last dimension:", ""]
    lines += [table(["gate", "units"], [[f"`{key}`", str(value.shape[-1])] for key, value in trace.items()])]
    return "\n".join(lines) + "\n"


def _modules() -> list[Any]:
    return [module for key, module in sorted(sys.modules.items()) if key.startswith("gatedrnn.cells.")]


def _used_as(name: str, cell: Cell) -> list[str]:
    own = [kind for kind in RecurrentBase.__subclasses__() if kind is not Recurrent and kind(1, 1).cell is cell]
    names = [*(f"`gatedrnn.{kind.__name__}`" for kind in own), f"`gatedrnn.Recurrent('{name}', …)`"]
    return [f"Used as {' or '.join(names)}, in a run's YAML as `cell: {name}`."]


def _without_docstring(cell: Cell) -> str:
    lines = textwrap.dedent(inspect.getsource(cell.step)).splitlines()
    body = ast.parse("\n".join(lines)).body[0].body  # type: ignore[attr-defined]
    if ast.get_docstring(ast.parse("\n".join(lines)).body[0]) is not None:  # type: ignore[arg-type]
        del lines[body[0].lineno - 1 : body[0].end_lineno]
    return "\n".join(lines)


def write_cell_pages(app: Any) -> None:
    """Write cells/<name>.md for each registered cell, and remove pages of cells that are gone."""
    folder = Path(app.srcdir) / "cells"
    pages = {folder / f"{name}.md": cell_page(name, cell) for name, cell in CELLS.items()}
    for path in folder.glob("*.md"):
        if path not in pages and path.name != "index.md":
            path.unlink()
    for path, text in pages.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_cell_pages)
    app.connect("autodoc-process-docstring", rst_docstring)
