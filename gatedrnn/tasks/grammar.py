"""Grammar: learn the rules of a context-free grammar from sentences alone, by the likelihood of each sentence."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, final

import numpy as np
import torch
from torch import nn

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import EOS, Corpus, Vocabulary, find_splits
from gatedrnn.data.ragged import Ragged
from gatedrnn.data.sentences import SHORTEST, GrammarDataConfig, SentenceBatch, by_room, of_length, sentence_batches
from gatedrnn.data.vocabulary import VOCABULARY_FILE
from gatedrnn.models.grammar import LONGEST, SPANS_AT_ONCE, Grammar
from gatedrnn.models.surprisal import evaluating
from gatedrnn.tasks.config import WINDOWS, TrainingConfig
from gatedrnn.tasks.of_corpus import OfCorpus
from gatedrnn.tasks.task import Batches, Evaluation, Loss, Score
from gatedrnn.tasks.text import on


@dataclass(frozen=True)
class Likelihood:
    """Of sentences under a grammar.

    Args:
        perplexity: of a word: the exponential of `loss_nats`. The end of a sentence is not counted as a word.
        loss_nats: the sum of −log P(sentence) over the number of words.
        log_likelihood_nats: the mean of log P(sentence).
        sentences, words: how many were read.
        left_out: sentences of one word, which have no binary tree, or of more than 300.
    """

    perplexity: float
    loss_nats: float
    log_likelihood_nats: float
    sentences: int
    words: int
    left_out: int


def _no_gates(*_: Any, **__: Any) -> NoReturn:
    raise ArgumentError("gates", "needs a model with gates", "a run of grammar", "Name a run of another task")


@final
class GrammarInduction(OfCorpus):
    """The task; see `Task`. Args: corpus: with splits train and valid; data: lengths of sentences."""

    name: ClassVar[str] = "grammar"
    data: ClassVar[type] = GrammarDataConfig
    network: ClassVar[Any] = Grammar
    measure: ClassVar[str] = "perplexity"
    rated: ClassVar[str] = "perplexity"
    reads: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "words"
    files: ClassVar[tuple[str, ...]] = (VOCABULARY_FILE,)
    training: ClassVar[TrainingConfig] = TrainingConfig(
        batch_size=16, learning_rate=0.001, betas=(0.75, 0.999), schedule="constant", gradient_clip=0.2
    )
    ignores: ClassVar[tuple[str, ...]] = (
        *WINDOWS, "final_temperature", "final_noise_probability", "evaluation_batch_size", "backend",
    )  # fmt: skip

    def __init__(self, corpus: Corpus, data: GrammarDataConfig) -> None:
        super().__init__(corpus)
        self.settings = data
        train = min(data.longest, data.first_longest)
        for name, longest in (("train", train), ("valid", LONGEST), ("test", LONGEST)):
            if name in corpus.files and not len(self._kept(name, longest)):
                rule = f"must hold a sentence of {SHORTEST} to {longest} words"
                raised = name == "train" and longest < data.longest
                advice = "Check the file, or raise data.first_longest" if raised else "Check the file"
                raise DataError(str(corpus.files[name]), rule, "none", advice)

    @classmethod
    def open(cls, data: GrammarDataConfig, folder: Path | str, run: Path | None = None) -> "GrammarInduction":
        """Read a folder's text, with the vocabulary of a run that has begun.

        Raises: DataError: as `Corpus`, or no sentence is of a length that is trained on.
        """
        known = None if run is None else Vocabulary.load(run / VOCABULARY_FILE)
        reading = {name: getattr(data, name) for name in ("level", "min_count", "empty_lines", "tokenize")}
        return cls(Corpus(find_splits(folder), known, **reading), data)

    def describe(self) -> str:
        """Tokens by split, the vocabulary's size, and which sentences are trained on."""
        corpus, longest = self.corpus, self.settings.longest
        parts = ", ".join(f"{name} {size:,}" for name, size in corpus.sizes.items())
        kept = len(self._kept("train", longest))
        which = f"trained on {kept:,} of {corpus.lines['train']:,} sentences, of {SHORTEST} to {longest} words"
        return f"tokens: {parts}; {len(corpus.vocabulary):,} words; {which}"

    def batches(self, training: TrainingConfig, epoch: int) -> Batches:
        """Sentences of about one length; longer ones from epoch to epoch."""
        sentences = self._kept("train", self.settings.longest_in(epoch))
        return sentence_batches(sentences, training.batch_size, training.seed, epoch)

    def loss(
        self,
        model: nn.Module,
        training: TrainingConfig,
        batch: SentenceBatch,
        carried: Any,
        divisor: float,
        device: torch.device,
    ) -> Loss:
        """−log P of the sentences."""
        found_B = model(on(device, batch.tokens_TB), on(device, batch.lengths_B))
        return Loss(-found_B.sum() / divisor)

    def score(self, model: nn.Module, training: TrainingConfig, split: str = "valid") -> Score:
        """Perplexity of a word."""
        found = likelihood(model, self.corpus[split], self._eos)
        return Score(found.loss_nats, {"loss_nats": found.loss_nats, "perplexity": found.perplexity})

    def _kept(self, split: str, longest: int) -> Ragged:
        return of_length(self.corpus[split], self._eos, SHORTEST, longest)

    @staticmethod
    def evaluate(model: nn.Module, held: Vocabulary, text: Corpus, how: Mapping[str, Any]) -> Evaluation:
        """Perplexity of a word, and the log-likelihood of a sentence."""
        found = likelihood(model, text["text"], held.ids[EOS])
        unknown = text.unknown["text"]
        counted = f"{found.words} words in {found.sentences} sentences"
        lines = [
            f"perplexity {found.perplexity:.4f}  loss {found.loss_nats:.5f} nats a word  {counted}",
            f"log-likelihood {found.log_likelihood_nats:.4f} nats a sentence",
            f"{unknown} words are <unk>; {found.left_out} sentences of 1 word or of more than {LONGEST} are left out",
        ]
        return Evaluation(asdict(found), lines)

    @staticmethod
    def rate(
        model: nn.Module, held: Vocabulary, text: Corpus, batch_size: int, most: int | None = None
    ) -> tuple[float, int]:
        """Perplexity of a word."""
        found = likelihood(model, text["text"][:most], held.ids[EOS])
        return found.perplexity, found.words

    gates = gates_by_word = staticmethod(_no_gates)


@torch.no_grad()
def likelihood(model: nn.Module, tokens: np.ndarray, eos: int) -> Likelihood:
    """Likelihood of sentences under a Grammar, in any mode.

    Args: tokens: ids [N], `eos` after each sentence.
    Raises: DataError: no sentence has a length that is read. CheckpointError: the likelihood is not finite.
    """
    sentences = of_length(tokens, eos, SHORTEST, LONGEST)
    count, words = len(sentences), int(sentences.lengths_N.sum())
    left_out = int((tokens == eos).sum()) - count
    if not count:
        rule = f"must hold a sentence of {SHORTEST} to {LONGEST} words"
        raise DataError("evaluate.tokens", rule, f"{left_out} others", "Check the text")
    device, total = next(model.parameters()).device, 0.0
    with evaluating(model):
        for chosen in by_room(sentences, SPANS_AT_ONCE):
            ids_TB, lengths_B = sentences.batch(chosen)
            total += float(model(on(device, ids_TB), on(device, lengths_B)).cpu().double().sum())
    loss = -total / words
    if not loss < 700:  # NaN too
        advice = "The model holds NaN or infinity, or is not trained: train again"
        raise CheckpointError("perplexity", "must be finite", f"a loss of {loss:g} nats a word", advice)
    return Likelihood(math.exp(loss), loss, total / count, count, words, left_out)
