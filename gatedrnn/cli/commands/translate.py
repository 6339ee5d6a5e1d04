"""`gatedrnn translate`: a text in another language, line by line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, run_place, settings
from gatedrnn.cli.text import BEAM_NAMES, text_place
from gatedrnn.core.checks import positive_int
from gatedrnn.data import plain_lines
from gatedrnn.models.beam import Beam
from gatedrnn.tasks.translation import TOGETHER, Translation, translations
from gatedrnn.training.run import load_run

_NAMES = BEAM_NAMES | {"n_best": "n_best"}


@dataclass(frozen=True)
class Options(arguments.Options):
    """By which run, what, and how."""

    run: str = run_place()
    file: str = text_place()
    beam: Beam | None = settings(Beam, _NAMES)
    scores: bool = option(False, "print the score and a tab before each translation")
    alignments: bool = option(
        False, "print a tab and the aligned pairs of source and target tokens, from 0, after each translation"
    )
    batch_size: int = option(TOGETHER, "sentences to translate at once")


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A record a line; that of an empty line has no translation.

    Raises: ArgumentError: a value is out of range.
    """
    together = positive_int("--batch-size", options.batch_size)
    run = load_run(options.run, Translation.name)
    languages, longest, warned = run.vocabulary, run.config.data.longest, False
    found = translations(run.model, languages, plain_lines(options.file), options.beam or Beam(), together)
    for number, (source, best) in enumerate(found, 1):
        if len(source) + 1 > longest and not warned:
            told = f"line {number} has {len(source)} tokens; the model was not trained on pairs of more than {longest}"
            print(f"gatedrnn: {told}, so translations of such lines may be poor", file=sys.stderr)
            warned = True
        yield {
            "source": source,
            "translations": [
                {
                    "text": languages.written(one.ids),
                    "tokens": languages.target.readable(languages.target.decode(one.ids)),
                    "score": one.score,
                    "log_probability": one.log_probability,
                    "alignment": one.alignment,
                }
                for one in best
            ],
        }


def show(found: Iterator[dict[str, Any]], options: Options) -> None:
    """A line a line, an empty one for an empty one; with several of each, a line a translation, the source's number before it."""
    numbered = options.beam is not None and options.beam.n_best > 1
    for number, one in enumerate(found, 1):
        for best in one["translations"] or [None]:
            columns = [""] if best is None else _columns(best, options)
            if numbered:
                columns += [""] * (1 + options.scores + options.alignments - len(columns))
            print("\t".join(([str(number)] if numbered else []) + columns))


def _columns(best: dict[str, Any], options: Options) -> list[str]:
    columns = [f"{best['score']:.4f}"] if options.scores else []
    columns.append(best["text"])
    if options.alignments:
        columns.append(" ".join(f"{place}-{k}" for k, place in enumerate(best["alignment"])))
    return columns
