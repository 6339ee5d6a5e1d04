"""The page: two runs side by side, by Gradio, on this machine only."""

import os
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from gatedrnn.app.readings import MOST, about, go_on, layers, read
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.training.run import Run

HOST = "127.0.0.1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # Gradio reads it as it is imported, and later

try:
    import gradio as gr  # type: ignore[reportMissingImports] - an extra of its own
    from gradio.themes import Default  # type: ignore[reportMissingImports]
except ImportError as missing:
    advice = "Install it: pip install 'gatedrnn[app]'"
    raise ArgumentError("gatedrnn.app", "needs the library gradio", str(missing), advice) from missing

_FONT, _MONO = ["system-ui", "Segoe UI", "Roboto", "sans-serif"], ["ui-monospace", "Menlo", "Consolas", "monospace"]
_PRIVATE = "private"
"""No address of the page's functions is offered to programs: `gatedrnn serve` is for them."""


def build(runs: dict[str, Run]) -> gr.Blocks:
    """The page of runs by their names: two columns, each with a run of the reader's choice. Nothing listens yet.

    Args: runs: at least one; one alone stands in both columns.
    """
    names = list(runs)
    with gr.Blocks(title="gatedrnn", analytics_enabled=False, fill_width=True) as page:
        gr.Markdown("# A sentence, read by two models")
        sentence = gr.Textbox(
            label="Sentence, written as in the training text", autofocus=True, max_length=4000, submit_btn=True
        )
        mapped = gr.Checkbox(label="Surprisal: also look up unknown words in lower case, and numbers as N")
        with gr.Row():
            chosen = [_column(runs, name, sentence, mapped) for name in (names[0], names[min(1, len(names) - 1)])]
        gr.Markdown("## Continue the text")
        with gr.Row():
            temperature = gr.Slider(0, 1.5, value=0.8, step=0.05, label="Temperature; 0 is greedy")
            many = gr.Number(40, precision=0, label="Number of tokens", minimum=1, maximum=MOST)
            seed = gr.Number(1, precision=0, label="Seed", minimum=0)
        button = gr.Button("Continue", variant="primary")
        with gr.Row():
            for name in chosen:
                text = gr.Textbox(show_label=False, lines=6, interactive=False)
                given = [name, sentence, temperature, many, seed]
                button.click(partial(_go_on, runs), given, text, api_visibility=_PRIVATE)
    return page


def _column(runs: dict[str, Run], name: str, sentence: Any, mapped: Any) -> Any:
    """One column; its choice of a run."""
    with gr.Column():
        chosen = gr.Dropdown(list(runs), value=name, label="Run")
        told = gr.Markdown(about(runs[name]))
        layer = gr.Dropdown(label="Layer for tree and gates", **_choices(runs[name]))
        tree = gr.HTML()
        brackets = gr.Textbox(label="Brackets", buttons=["copy"], interactive=False, visible=False)
        bars = gr.HTML()
        with gr.Accordion("Numbers", open=False):
            table = gr.Dataframe(headers=["word", "surprisal, bits", "distance", "known"], interactive=False)
    shown = [tree, brackets, bars, table]
    given = [chosen, sentence, layer, mapped]
    events = [sentence.submit, layer.input, mapped.change]
    gr.on(events, partial(_read, runs), given, shown, trigger_mode="always_last", api_visibility=_PRIVATE)
    chosen.input(partial(_choose, runs), chosen, [told, layer], api_visibility=_PRIVATE).then(
        partial(_read, runs), given, shown, api_visibility=_PRIVATE
    )
    return chosen


def _choices(run: Run) -> dict[str, Any]:
    """Of a layer; hidden where there is none."""
    found = layers(run)
    return {"choices": found, "value": next(iter(found), None), "visible": bool(found)}


def _choose(runs: dict[str, Run], name: str) -> tuple[str, Any]:
    return about(runs[name]), gr.Dropdown(**_choices(runs[name]))


def _caught(function: Callable[..., Any], *given: Any) -> Any:
    """What it returns; a user's mistake as a message on the page."""
    try:
        return function(*given)
    except GatedRNNError as error:
        raise gr.Error(str(error), print_exception=False) from error


def _read(runs: dict[str, Run], name: str, sentence: str, layer: str | None, mapped: bool) -> Any:
    tree, brackets, bars, rows = _caught(read, runs[name], sentence, layer, mapped)
    return tree, gr.Textbox(brackets, visible=bool(brackets)), bars, rows


def _go_on(
    runs: dict[str, Run], name: str, sentence: str, temperature: float, many: int | None, seed: int | None
) -> Any:
    return _caught(go_on, runs[name], sentence, temperature, many or 0, 1 if seed is None else seed)


def start(page: gr.Blocks, port: int) -> str:
    """Listen on this machine, in a thread of its own; the address. Raises: ArgumentError: the port is taken."""
    theme = Default(primary_hue="teal", font=_FONT, font_mono=_MONO)
    # what later releases have
    newer = {"run_history": False} if "run_history" in signature(page.launch).parameters else {}
    try:
        _, url, _ = page.launch(
            server_name=HOST, server_port=port, share=False, quiet=True, prevent_thread_lock=True, theme=theme,
            footer_links=[], ssr_mode=False, mcp_server=False, enable_monitoring=False, **newer,
        )  # fmt: skip
    except OSError as error:
        raise ArgumentError("--port", "must be free", port, "Choose another port") from error
    return url
