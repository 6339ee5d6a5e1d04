"""The commands, a module each, which is imported when its command is given. A further one is a file and a line here."""

import importlib
from keyword import iskeyword
from typing import Any, Protocol, cast

COMMANDS = {
    "demo": "train on the built-in grammar and draw its trees: report.html, results.json",
    "train": "train a language model on the texts of --data DIR or on the built-in grammar; or another --task",
    "distil": "train one language model that also learns the trees of a vote of runs",
    "sweep": "find the settings that train best: short runs of all, then longer runs of the better half",
    "evaluate": "score a run on a text: perplexity, BLEU, or accuracy by number of operators",
    "translate": "translate a text, line by line",
    "surprisal": "print the surprisal of each word of a text, in bits, and its distance",
    "generate": "sample text from a run",
    "parse": "parse a text into one bracketed tree per line",
    "eval-parsing": "score a run's trees against a treebank: F1 by every protocol, compared with baselines",
    "eval-syntax": "score a run on minimal pairs, by phenomenon, or on test suites of SyntaxGym",
    "compress": "write a smaller run, and print bytes, score and speed before and after; or compare schemes in a table",
    "export": "write a run as a folder that Hugging Face transformers loads, as ONNX graphs, or as a static web page",
    "import": "turn a folder that export --to hf wrote back into a run",
    "accept": "accept changes that were made to a run's files on purpose: write new checksums",
    "serve": "serve runs over HTTP on this machine: completions as in OpenAI's API, trees, surprisal",
    "app": "show runs side by side in a web page on this machine: trees, master gates, surprisal, continuation",
    "gates": "show what gates do: histograms, averages by word, update frequency, split points; writes figures and JSON",
    "bench": "measure speed and memory of the layers, compared with torch.nn and with their matrix products alone",
    "explain": "show where each step of a cell's computation is implemented, and which backend runs it",
}
"""What each does, as `--help` lists them."""


class CommandModule(Protocol):
    """What a command's module has.

    Attributes: Options: a dataclass of its arguments, see `gatedrnn.cli.arguments`.

    Two functions more are called where a module has them, as `train` has: `prepare(arguments)` gives arguments as they can be
    read and fields of `Options` that they decide; `add_sections(parser, arguments)` adds what is no field.
    """

    Options: Any

    def run(self, options: Any) -> Any:
        """A record, which `--json` prints; an iterator of records, a line each, for what is printed while it is found."""
        ...

    def show(self, found: Any, options: Any) -> None:
        """Print it in words."""
        ...


def command_module(name: str) -> CommandModule:
    """The module of the command `name`."""
    module = name.replace("-", "_") + "_" * iskeyword(name)
    return cast(CommandModule, importlib.import_module(f"{__name__}.{module}"))
