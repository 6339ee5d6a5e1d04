"""Our models in EleutherAI's lm-eval, by its own command line: `python -m gatedrnn.cli.harness ARGUMENTS OF lm_eval`.

It registers the model `gatedrnn` (`--model gatedrnn --model_args run=RUN`) and hands over to lm-eval.
Dimensions: T time, B batch, V vocabulary.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gatedrnn.cli.main import report_errors
from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, MAPPINGS
from gatedrnn.data.ragged import within
from gatedrnn.models import generate
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating, token_losses
from gatedrnn.studies.parsing.lines import align_lines
from gatedrnn.studies.syntax import continuation_ids, sentence_ids
from gatedrnn.training.run import load_run

_BATCH, _LOGITS = 32, 1 << 26
_LONGEST = 256  # tokens generated unless the task says otherwise


class Scorer:
    """A run, as lm-eval asks a model.

    Arguments: run, the folder; mapping, how words are looked up [the run's]; append, as `eval-syntax --append`.
    """

    def __init__(
        self,
        run: str | None = None,
        mapping: str | None = None,
        append: str = "",
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if run is None:
            raise ArgumentError("--model_args", "must name the run", "none", "Write --model_args run=RUN")
        self.run = load_run(run)
        there = device is not None and (torch.cuda.is_available() or not device.startswith("cuda"))
        self.run.model.to(device if there else "cpu")  # lm-eval asks for cuda unless told otherwise
        self.mapping = one_of("mapping", mapping or self.run.config.data.mapping, MAPPINGS)
        self.append = str(append)
        self.eos = self.run.vocabulary.ids[EOS]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """`likelihoods` of requests' contexts and continuations."""
        pairs = [self._ids(*request.args) for request in requests]
        return likelihoods(self.run.model, pairs, self.eos)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log P in nats of whole texts, a sentence a line, as `evaluate` reads them."""
        how = {"empty_lines": self.run.config.data.empty_lines}
        lines = [align_lines(self.run.vocabulary, _lines(request.args[0]), **how) for request in requests]
        texts = [[i for line in text for i in (*line.ids, self.eos)] for text in lines]
        found = token_losses(self.run.model, [text for text in texts if text], self.eos)
        return [-float(next(found).sum()) if text else 0.0 for text in texts]  # a text without a token is certain

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations of requests' contexts, the likeliest word each time unless a temperature is asked for."""
        return [self._generated(*request.args) for request in requests]

    def _ids(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both; a continuation of nothing is a sentence, with its end."""
        vocabulary, end = self.run.vocabulary, f" {self.append}" if self.append else ""
        before, after = (
            continuation_ids(vocabulary, context, continuation, self.mapping) if context.strip() else ([], [])
        )
        if not before:
            return [], [*sentence_ids(vocabulary, continuation + end, self.mapping), self.eos]
        return before, (after or sentence_ids(vocabulary, continuation, self.mapping)) if continuation else []

    def _generated(self, context: str, how: dict[str, Any]) -> str:
        vocabulary, until = self.run.vocabulary, how.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        prompt = [self.eos, *sentence_ids(vocabulary, context, self.mapping)]
        sampled = how.get("do_sample", True)
        temperature = max(float((how.get("temperature") if sampled else 0.0) or 0.0), 1e-6)
        ids = generate(self.run.model, prompt, temperature=temperature, generator=torch.Generator().manual_seed(0))
        words: list[str] = []
        for _ in range(int(how.get("max_gen_toks", _LONGEST))):
            words.append(vocabulary.words[next(ids)])
            text = vocabulary.text(words)
            if any(stop in text for stop in stops):
                return min((text.split(stop)[0] for stop in stops), key=len)
        return vocabulary.text(words)


def _lines(text: str) -> list[str]:
    """Lines of a text as of a file."""
    return [line.rstrip("\r") for line in text.removeprefix("\ufeff").removesuffix("\n").split("\n")] if text else []


def register() -> None:
    """Make `--model gatedrnn` known to lm-eval. Raises: ArgumentError: lm-eval is not installed."""
    try:
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports] - an extra
        from lm_eval.api.registry import MODEL_REGISTRY, register_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        advice = "Install it: pip install 'gatedrnn[eval]'"
        raise ArgumentError("harness", "needs the library lm-eval", "no such module", advice) from error

    class GatedRNN(Scorer, LM):
        """A run as a model of lm-eval."""

    if "gatedrnn" not in MODEL_REGISTRY:
        register_model("gatedrnn")(GatedRNN)


@torch.no_grad()
def likelihoods(model: Any, pairs: Sequence[tuple[list[int], list[int]]], eos: int) -> list[tuple[float, bool]]:
    """log P in nats of each continuation after `<eos>` and its context, and whether each of its ids is the likeliest.

    Args: pairs: ids of context and continuation; an empty continuation has probability 1.
    Raises: CheckpointError: one is not finite.
    """
    sizes = [len(context) + len(continuation) for context, continuation in pairs]
    order = sorted((k for k, size in enumerate(sizes) if size), key=sizes.__getitem__)
    found: dict[int, tuple[float, bool]] = {k: (0.0, True) for k, size in enumerate(sizes) if not size}
    batches = [np.asarray(order[first : first + _BATCH]) for first in range(0, len(order), _BATCH)]
    for numbers in within(batches, np.asarray(sizes)[:, None] * model.embedding.num_embeddings, _LOGITS):
        chosen = [(k, [eos, *pairs[k][0], *pairs[k][1]]) for k in numbers.tolist()]
        inputs_TB = torch.full((max(len(ids) for _, ids in chosen), len(chosen)), eos)
        for b, (_, ids) in enumerate(chosen):
            inputs_TB[: len(ids), b] = torch.tensor(ids)
        with evaluating(model):
            logits_TBV = model(inputs_TB[:-1].to(model.embedding.weight.device)).logits
        for b, (k, ids) in enumerate(chosen):
            start, end = len(pairs[k][0]), len(ids) - 1
            logits_TV = logits_TBV[start:end, b].cpu().double()
            targets_T = torch.tensor(ids[start + 1 :], dtype=torch.long)
            log_p_T = finite("log P", logits_TV.log_softmax(-1).gather(-1, targets_T[:, None]))
            found[k] = (float(log_p_T.sum()), bool((logits_TV.argmax(-1) == targets_T).all()))
    return [found[k] for k in range(len(pairs))]


def main() -> int:
    """Register the model and run lm-eval on the command line's arguments."""

    def run() -> int:
        register()
        from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

        cli_evaluate()
        return 0

    return report_errors(run)


if __name__ == "__main__":
    sys.exit(main())
