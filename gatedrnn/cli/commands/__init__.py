"""The commands, a room each, which is imported when its command is given. A further one is a file and a line here."""

import importlib
from keyword import iskeyword
from typing import Any, Protocol, cast

COMMANDS = {
    "demo": "train on the built-in grammar and draw its trees: report.html, results.json",
    "train": "train a language model: --data DIR with train.txt, valid.txt, test.txt (else the built-in grammar); or --task",
    "evaluate": "a run's score on a text: perplexity, BLEU, or accuracy by number of operators",
    "translate": "translate a text, line by line",
    "surprisal": "surprisal of each word of a text in bits, and its distance",
    "generate": "sample text",
    "parse": "one bracketed tree a line",
    "eval-parsing": "F1 of a run's trees by every protocol, beside baselines",
    "eval-syntax": "accuracy on minimal pairs, grammatical against ungrammatical, by phenomenon",
    "compress": "a run in a small form, with bytes, score and speed before and after; or a table of schemes",
    "export": "a run as a folder that Hugging Face transformers loads, as graphs of ONNX, or as a page without a server",
    "import": "a folder of transformers that was a run, as a run",
    "accept": "take a run's files for right after a change made on purpose: new checksums",
    "serve": "runs over HTTP on this machine: completions as OpenAI's client asks for them, trees, surprisal",
    "app": "runs side by side in a page on this machine: trees, master gates, surprisal, continuation",
    "gates": "what gates do: histograms, averages by word, update frequency, split points; figures and JSON",
    "bench": "speed and memory of the layers beside torch.nn and the bound of their products, checked first",
    "explain": "where each hop of a cell's computation lives, and which backend runs it",
}
"""What each does, as `--help` lists them."""


class Room(Protocol):
    """A command's module.

    Attributes: Options: a dataclass of its arguments, see `gatedrnn.cli.arguments`.

    Two functions more are called where a room has them, as `train` has: `prepare(arguments)` gives arguments as they can be read
    and fields of `Options` that they decide; `add_sections(parser, arguments)` adds what is no field.
    """

    Options: Any

    def run(self, options: Any) -> Any:
        """A record, which `--json` prints; an iterator of records, a line each, for what is printed while it is found."""
        ...

    def show(self, found: Any, options: Any) -> None:
        """Print it in words."""
        ...


def room(name: str) -> Room:
    """A command's."""
    module = name.replace("-", "_") + "_" * iskeyword(name)
    return cast(Room, importlib.import_module(f"{__name__}.{module}"))
