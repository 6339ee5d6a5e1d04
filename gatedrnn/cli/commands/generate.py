"""`gatedrnn generate`: text that a run samples."""

from dataclasses import dataclass

import torch

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, run_place
from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, UNK
from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.models import generate
from gatedrnn.training.run import load_run


@dataclass(frozen=True)
class Options(arguments.Options):
    """Of which run, and how it is sampled."""

    run: str = run_place()
    prompt: str = option("", "text to continue")
    words: int = option(100, "number of tokens to sample: words, characters or subwords")
    temperature: float = option(1.0, "sampling temperature; values near 0 are almost greedy")
    top_k: int | None = option(None, "sample only from the k most probable tokens [all]")
    top_p: float = option(1.0, "sample only from the most probable tokens whose probabilities sum to p")
    no_unk: bool = option(False, "never sample <unk>; the other probabilities are divided by their sum")
    seed: int = option(1, "seed of the sampling")


def run(options: Options) -> Found:
    """Prompt and sampled words. Raises: ArgumentError: a value is out of range."""
    run = load_run(options.run)
    positive_int("--words", options.words)
    if not 0 <= options.seed < 1 << 63:
        raise ArgumentError("--seed", "must lie in 0…2^63 − 1", options.seed, "Give a whole number such as 1")
    prompt = prompt_tokens(run.vocabulary, options.prompt)
    ids = generate(
        run.model,
        [run.vocabulary.ids[EOS], *prompt_ids(run.vocabulary, prompt, run.config.data.mapping)],
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        exclude=[run.vocabulary.ids[UNK]] if options.no_unk else [],
        generator=torch.Generator().manual_seed(options.seed),
    )
    words = [*prompt, *(run.vocabulary.words[next(ids)] for _ in range(options.words))]
    return Found({"text": words, "prompt_words": len(prompt), "seed": options.seed}, run.vocabulary.text(words))


def show(found: Found, options: Options) -> None:
    """The text."""
    print(found.more)
