"""`gatedrnn evaluate`: a run's score on a text, by the run's own task."""

from dataclasses import dataclass, fields

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, run_place, settings
from gatedrnn.cli.text import BEAM_NAMES, TOKENIZE
from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.beam import Beam
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.cache import Cache
from gatedrnn.tasks.dynamic import Dynamic
from gatedrnn.training.run import load_run

_CACHE = {"cache_window": "window", "cache_theta": "theta", "cache_lambda": "lambda_"}
_DYNAMIC = {"dynamic_rate": "rate", "dynamic_decay": "decay", "dynamic_segment": "segment"}
_READERS = {
    name: [task for task, kind in TASKS.items() if name in kind.reads]
    for _, kind in TASKS.items()
    for name in kind.reads
}


@dataclass(frozen=True)
class Options(arguments.Options):
    """Of which run, on what, and how."""

    run: str = run_place()
    data: str | None = option(
        None,
        "text, one sentence a line, .gz too; - for standard input; of translations, a TSV file, or what stands before .SOURCE "
        "and .TARGET [the run's own test text]",
        "FILE",
    )
    batch_size: int = option(1, "1 is exact; more is faster, each stretch starts afresh")
    reset: bool = option(False, "a fresh state for each sentence, instead of one carried")
    cache: Cache | None = settings(Cache, _CACHE, "cache", "mix a continuous cache in")
    dynamic: Dynamic | None = settings(Dynamic, _DYNAMIC, "dynamic", "learn from each segment once it is scored")
    beam: Beam | None = settings(Beam, BEAM_NAMES)
    tokenize: str | None = option(None, "of BLEU [none where references look tokenised, else 13a]", choices=TOKENIZE)


def run(options: Options) -> Found:
    """Every measure. Raises: ArgumentError: an option that runs of this task do not read."""
    run = load_run(options.run, None)
    task = TASKS[run.config.task]
    own = {each.name: each.metadata.get("names", {}) for each in fields(Options)}
    for name, tasks in _READERS.items():
        said = next((n for n in (name, *own[name]) if n in options.given), None)
        if said is not None and name not in task.reads:
            flag, rule = f"--{said.replace('_', '-')}", f"is read by runs of {' and '.join(tasks)} only"
            raise ArgumentError(flag, rule, f"a run of {task.name}", f"Drop {flag}")
    text = task.text(run.vocabulary, run.config.data, run.text_folder, path=options.data)
    found = task.evaluate(run.model, run.vocabulary, text, {name: getattr(options, name) for name in task.reads})
    return Found(found.record, found.lines)


def show(found: Found, options: Options) -> None:
    """A few lines."""
    print("\n".join(found.more))
