"""What each command takes: its options, added to a parser, and the line that `--help` has for it."""

from collections.abc import Callable

from jsonargparse import ActionConfigFile, ArgumentParser  # pyright: ignore[reportPrivateImportUsage]

from gatedrnn.cells import CELLS
from gatedrnn.data.config import MAPPINGS
from gatedrnn.trees import ALGORITHMS, KEEP_RULES


def _run_argument(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=str, help="folder of a trained run")


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", default="gatedrnn-demo", help="folder for report.html, results.json, run/"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the grammar's text and the training")


def _train(parser: ArgumentParser, task: str) -> None:
    from gatedrnn.tasks import TASKS
    from gatedrnn.tasks.config import TrainingConfig

    kind = TASKS[task]
    parser.add_argument(
        "--task", metavar="NAME", default=task, help=f"{', '.join(TASKS)} [of the configuration, or the first]"
    )
    parser.add_argument("--config", action=ActionConfigFile, help="a run's YAML with the sections below")
    parser.add_argument("--out", metavar="RUN", type=str | None, help="a new folder [runs/<name of the data>]")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out where it was; start it if it is not there yet",
    )
    parser.add_argument("--data", type=kind.data, default=kind.data())
    parser.add_argument("--model", type=kind.model, default=kind.model())
    parser.add_argument("--training", type=TrainingConfig, default=kind.training)
    shown = parser._option_string_actions["--data"]  # whose own help names a file: `_data_folder` takes a folder
    shown.metavar, shown.help = "DIR", "folder with train.txt and so on: the same as --data.folder DIR"


def _text_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="text, one sentence a line; - for standard input"
    )


def _evaluate(parser: ArgumentParser) -> None:
    _run_argument(parser)
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="text, one sentence a line, .gz too; - for standard input [the run's own test text]",
    )
    parser.add_argument(
        "--batch-size", type=int, default=1, help="1 is exact; more is faster, each stretch starts afresh"
    )
    parser.add_argument("--reset", action="store_true", help="a fresh state for each sentence, instead of one carried")
    parser.add_argument("--cache", action="store_true", help="mix a continuous cache in")
    parser.add_argument("--cache-window", type=int | None, help="positions looked back at [3785]")
    parser.add_argument("--cache-theta", type=float | None, help="sharpness [0.6625]")
    parser.add_argument("--cache-lambda", type=float | None, help="share of the cache [0.1279]")
    parser.add_argument("--dynamic", action="store_true", help="learn from each segment once it is scored")
    parser.add_argument("--dynamic-rate", type=float | None, help="length of a step [0.004]")
    parser.add_argument(
        "--dynamic-decay", type=float | None, help="share of the way back to the trained weights [0.01]"
    )
    parser.add_argument("--dynamic-segment", type=int | None, help="tokens a segment [20]")


def _surprisal(parser: ArgumentParser) -> None:
    _run_argument(parser)
    _text_argument(parser)
    parser.add_argument("--carried", action="store_true", help="carry the state on, instead of one for each sentence")
    parser.add_argument("--tokens", action="store_true", help="a row a token, not summed to words")
    parser.add_argument("--layer", metavar="N", type=str | None, help="whose distances, from 1, or mean [as in parse]")
    _mapping_option(parser, "[exact]")


def _generate(parser: ArgumentParser) -> None:
    _run_argument(parser)
    parser.add_argument("--prompt", default="", help="text to go on from")
    parser.add_argument("--words", type=int, default=100, help="how many to sample: words, or what the tokens are")
    parser.add_argument("--temperature", type=float, default=1.0, help="small is greedy")
    parser.add_argument("--top-k", type=int | None, help="sample from the k most probable words [all]")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from the most probable words that sum to p")
    parser.add_argument("--seed", type=int, default=1)


def _reading_options(parser: ArgumentParser, several: bool = False) -> None:
    from gatedrnn.studies.parsing import GATES

    told = "from 1, or mean of all layers [the second, or the only one]"
    if several:
        parser.add_argument("--layer", metavar="N", action="append", help=f"repeatable: {told}")
    else:
        parser.add_argument("--layer", metavar="N", type=str | None, help=told)
    told = "whose mean gives the distances"
    if several:
        names = " or ".join(GATES)
        parser.add_argument("--gate", metavar="NAME", action="append", help=f"repeatable: {names}, {told} [{GATES[0]}]")
    else:
        parser.add_argument("--gate", choices=GATES, default=GATES[0], help=told)
    parser.add_argument(
        "--algorithm", choices=ALGORITHMS, default="unbiased", help="biased as published (leans right), or unbiased"
    )
    _mapping_option(parser, "[the run's]")


def _mapping_option(parser: ArgumentParser, default: str) -> None:
    told = f"how words are looked up: exact, lower case too, N for numbers too {default}"
    parser.add_argument("--mapping", choices=MAPPINGS, help=told)


def _parse(parser: ArgumentParser) -> None:
    _run_argument(parser)
    _text_argument(parser)
    _reading_options(parser)
    parser.add_argument("--svg", metavar="DIR", type=str | None, help="also draw each tree into DIR/00001.svg, …")


def _eval_parsing(parser: ArgumentParser) -> None:
    from gatedrnn.studies.parsing import BASELINE_NAMES

    parser.add_argument(
        "run", metavar="RUN", nargs="*", type=str, help="folder of a trained run; several vote; none for baselines"
    )
    parser.add_argument("--treebank", metavar="FILE", required=True, help="gold trees in Penn brackets, .gz too")
    _reading_options(parser, several=True)
    parser.add_argument(
        "--select", metavar="layer=auto", type=str | None, help="choose each run's layer by --dev's gold trees"
    )
    parser.add_argument("--dev", metavar="FILE", type=str | None, help="gold trees to choose by")
    names = ", ".join(BASELINE_NAMES)
    parser.add_argument(
        "--baseline", metavar="NAME", action="append", help=f"repeatable: {names} [all but balanced_up]"
    )
    parser.add_argument("--max-words", type=int | None, help="score sentences of at most so many words")
    parser.add_argument("--words", choices=tuple(KEEP_RULES), help="which terminals count [the run's, or ptb]")
    parser.add_argument("--skip-bad", action="store_true", help="name trees that cannot be read, and score the others")
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="N", help="95 %% intervals from N samples of the sentences"
    )
    parser.add_argument("--by-length", action="store_true", help="also by length of sentence")
    parser.add_argument(
        "--out", metavar="DIR", type=str | None, help="write report.html, results.json and figures there"
    )


def _eval_syntax(parser: ArgumentParser) -> None:
    from gatedrnn.studies.syntax import METHODS, UNKNOWN

    parser.add_argument("run", metavar="RUN", nargs="+", type=str, help="folder of a trained run; several side by side")
    told = "JSON lines with good, bad and phenomenon (or BLiMP's), .gz too; `grammar` for the built-in grammar's own"
    parser.add_argument("--pairs", metavar="FILE", required=True, help=told)
    parser.add_argument(
        "--unknown", choices=UNKNOWN, default="skip", help="pairs with unknown words: skip, or judge as <unk>"
    )
    parser.add_argument(
        "--method", choices=METHODS, default="sentence", help="whole sentences, or the word after one prefix"
    )
    parser.add_argument("--append", metavar="WORD", default="", help="at the end of each sentence, such as a full stop")
    _mapping_option(parser, "[the run's]")
    parser.add_argument("--out", metavar="DIR", type=str | None, help="write report.html and results.json there")


def _gates(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", type=str, help="folder of a trained run; several are overlaid")
    parser.add_argument(
        "--data", metavar="FILE", type=str | None, help="text for histograms, one sentence a line, .gz too"
    )
    parser.add_argument(
        "--sentence", metavar="TEXT", action="append", help="repeatable: average gates at each word of it"
    )
    parser.add_argument("--out", metavar="DIR", default="gatedrnn-gates", help="folder for figures and gates.json")
    parser.add_argument("--batch-size", type=int | None, help="stretches of the text read side by side [20]")
    _mapping_option(parser, "[the run's], in --sentence")


def _compress(parser: ArgumentParser) -> None:
    from gatedrnn.studies.compression import METHODS, WEIGHTS

    parser.add_argument("run", metavar="RUN", nargs="+", type=str, help="folder of a trained run; several with --table")
    parser.add_argument("--method", choices=METHODS, help="what is done to the weights")
    told = "comma-separated, `input=64` for a gate's own rank or step [input,forget; every row by int8, int4 and bf16]"
    parser.add_argument("--gates", metavar="NAMES", type=str | None, help=told)
    parser.add_argument(
        "--weights", choices=WEIGHTS, help="recurrent: those of the layers; all: embedding and decoder too"
    )
    parser.add_argument("--step", type=float | None, help="of round and clip [0.2]")
    parser.add_argument("--clip", type=float | None, help="largest weight of clip [0.4]")
    parser.add_argument("--rank", type=int | None, help="of svd [128 of 1,150 units, in proportion]")
    parser.add_argument(
        "--data", metavar="FILE", type=str | None, help="text to measure on [the run's validation text]"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=str | None, help="the compressed run; with --table, for table.md, .json and .png"
    )
    parser.add_argument(
        "--table", action="store_true", help="round, round & clip, SVD, SVD+, bf16, int8, int4: what each costs"
    )
    parser.add_argument(
        "--retrain", type=int, default=0, metavar="EPOCHS", help="train on, with the weights projected at every step"
    )
    told = "of --retrain, at its begin; it falls to 0 [a tenth of the run's]"
    parser.add_argument("--learning-rate", type=float | None, help=told)
    parser.add_argument("--resume", action="store_true", help="go on with a --retrain that was interrupted")


def _accept(parser: ArgumentParser) -> None:
    _run_argument(parser)


def _bench(parser: ArgumentParser) -> None:
    from gatedrnn.studies.speed import SHAPES

    shapes, cells = ", ".join(SHAPES), ", ".join(CELLS)
    parser.add_argument(
        "--shape",
        metavar="NAME",
        action="append",
        help=f"repeatable: {shapes}, or one layer as H1150-B20-T70[-inference] [S3]",
    )
    parser.add_argument("--cell", metavar="NAME", action="append", help=f"repeatable: {cells} [all]")
    parser.add_argument(
        "--backend",
        metavar="NAME",
        action="append",
        help="repeatable: cpu, triton, torch, reference, compiled [by device]",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="cpu or cuda [cpu]; cuda takes a grid of shapes"
    )
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each, in turn; the median counts")
    parser.add_argument("--mm", action="store_true", help="also the products by torch.mm")
    parser.add_argument("--parts", action="store_true", help="also each part of the products by itself")
    parser.add_argument("--memory", action="store_true", help="also peak memory, a process a model (Linux)")


def _explain(parser: ArgumentParser) -> None:
    parser.add_argument("cell", metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--kernel", action="store_true", help="print the CPU kernel that is compiled from the step")


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "demo": (_demo, "train on the built-in grammar and draw its trees: report.html, results.json"),
    "train": (
        _train,
        "train a language model: --data DIR with train.txt, valid.txt, test.txt (else the built-in grammar); or another --task",
    ),
    "evaluate": (_evaluate, "exact perplexity of a text"),
    "surprisal": (_surprisal, "surprisal of each word of a text in bits, and its distance"),
    "generate": (_generate, "sample text"),
    "parse": (_parse, "one bracketed tree a line"),
    "eval-parsing": (_eval_parsing, "F1 of a run's trees by every protocol, beside baselines"),
    "eval-syntax": (_eval_syntax, "accuracy on minimal pairs, grammatical against ungrammatical, by phenomenon"),
    "compress": (
        _compress,
        "a run in a small form, with bytes, perplexity and speed before and after; or a table of schemes",
    ),
    "accept": (_accept, "take a run's files for right after a change made on purpose: new checksums"),
    "gates": (_gates, "what gates do: histograms, averages by word, update frequency, split points; figures and JSON"),
    "bench": (_bench, "speed and memory of the layers beside torch.nn and the bound of their products, checked first"),
    "explain": (_explain, "where each hop of a cell's computation lives, and which backend runs it"),
}
