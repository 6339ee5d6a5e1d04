"""Language modelling: predict each token of a text, the state carried over windows or afresh for each sentence."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import nn

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, Corpus, DataConfig, Vocabulary, find_splits
from gatedrnn.data.batching import SentenceBatches, StreamBatches, Window, window_lengths
from gatedrnn.data.vocabulary import TOKENIZER_FILE, VOCABULARY_FILE
from gatedrnn.models import LanguageModel
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.gates import LayerGates, WordGates, gates_by_word, stream_gates
from gatedrnn.tasks.of_corpus import OfCorpus
from gatedrnn.tasks.penalties import penalties
from gatedrnn.tasks.perplexity import best_temperature, evaluate
from gatedrnn.tasks.task import Batches, Evaluation, Loss, Score
from gatedrnn.tasks.teacher import GATE, Teacher
from gatedrnn.tasks.text import on


@final
class LanguageModelling(OfCorpus):
    """The task; see `Task`.

    Args: corpus: with splits train and valid; teacher: of trees of its sentences, which are learned too; None for none.
    """

    name: ClassVar[str] = "language_modelling"
    data: ClassVar[type] = DataConfig
    network: ClassVar[Any] = LanguageModel
    measure: ClassVar[str] = "perplexity"
    rated: ClassVar[str] = "perplexity"
    reads: ClassVar[tuple[str, ...]] = ("batch_size", "reset", "temperature", "cache", "dynamic")
    unit: ClassVar[str] = "tokens"
    files: ClassVar[tuple[str, ...]] = (VOCABULARY_FILE, TOKENIZER_FILE)
    training: ClassVar[TrainingConfig] = TrainingConfig()
    ignores: ClassVar[tuple[str, ...]] = ()

    def __init__(self, corpus: Corpus, teacher: Teacher | None = None) -> None:
        super().__init__(corpus)
        self.teacher = teacher

    @classmethod
    def open(cls, data: DataConfig, folder: Path | str, run: Path | None = None) -> "LanguageModelling":
        """Read a folder's text, with the vocabulary and the teacher of a run that has begun.

        Raises: DataError, ArgumentError: as `Corpus`; the teacher is of another text. CheckpointError: the teacher is damaged.
        """
        known = None if run is None else Vocabulary.load(run / VOCABULARY_FILE)
        reading = {key: value for key, value in asdict(data).items() if key not in ("folder", "mapping", "words")}
        corpus, teacher = Corpus(find_splits(folder), known, **reading), None if run is None else Teacher.load(run)
        if teacher is not None:
            teacher.check_text(corpus, str(run))
        return cls(corpus, teacher)

    def checksum(self, split: str) -> int:
        """Of a split's tokens, and of what a teacher says of them."""
        found = super().checksum(split)
        if self.teacher is None or split not in self.teacher.heights:
            return found
        return self.teacher.checksum(split, found)

    def write(self, folder: Path) -> None:
        """The vocabulary, and the teacher."""
        super().write(folder)
        if self.teacher is not None:
            self.teacher.save(folder)

    def describe(self) -> str:
        """Tokens by split, and the vocabulary's size."""
        corpus = self.corpus
        parts = ", ".join(f"{split} {size:,}" for split, size in corpus.sizes.items())
        named = {"word": "words", "char": "characters", "subword": "subwords"}[corpus.vocabulary.level]
        unknown = 100 * corpus.unknown["valid"] / corpus.sizes["valid"]
        return f"tokens: {parts}; {len(corpus.vocabulary):,} {named} ({unknown:.1f} % of valid is <unk>)"

    def batches(self, training: TrainingConfig, epoch: int) -> Batches:
        """Windows of the stream, or sentences."""
        tokens = self.corpus["train"]
        if training.unit == "sentence":
            heights = None if self.teacher is None else self.teacher.heights["train"]
            return SentenceBatches(tokens, training.batch_size, self._eos, training.seed, epoch, heights)
        draw = (training.seed, epoch) if training.random_lengths else None
        lengths = window_lengths(len(tokens), training.batch_size, training.sequence_length, draw)
        rotation = (training.seed, epoch) if training.partial_shuffle else None
        return StreamBatches(tokens, training.batch_size, lengths, self._eos, rotation)

    def loss(
        self,
        model: nn.Module,
        training: TrainingConfig,
        batch: Window,
        carried: Any,
        divisor: float,
        device: torch.device,
    ) -> Loss:
        """Cross-entropy of the next token, or AdvSoft's, with AR and TAR beside it."""
        inputs_TB, targets_TB = on(device, batch.inputs_TB), on(device, batch.targets_TB)
        lengths_B = None if batch.lengths_B is None else on(device, batch.lengths_B)
        states = _reset(carried, training.reset_probability) if training.unit == "stream" else None
        adversarial, gates = training.adversarial_softmax, False if self.teacher is None else (GATE,)
        given: dict[str, Any] = {"lengths": lengths_B, "divisor": divisor, "adversarial_softmax": adversarial}
        output = model(inputs_TB, states, targets=targets_TB, return_gates=gates, **given)
        penalty = penalties(training, output, batch, lengths_B)
        if self.teacher is not None:
            penalty = penalty + self.teacher.loss(output, batch, device)
        carried = output.states if training.unit == "stream" else None  # a sentence starts afresh
        return Loss(output.loss, penalty, carried)

    def score(self, model: nn.Module, training: TrainingConfig, split: str = "valid") -> Score:
        """Perplexity, the state carried; with a teacher also how its trees are met, and the loss of both."""
        tokens, size = self.corpus[split], training.evaluation_batch_size
        found = evaluate(model, tokens, self.corpus.vocabulary, batch_size=size)
        shown = {"loss_nats": found.loss_nats, "perplexity": found.perplexity}
        if self.teacher is None or split not in self.teacher.heights:
            return Score(found.loss_nats, shown)
        trees = self.teacher.score(model, tokens, self._eos, split)
        return Score(found.loss_nats + self.teacher.how.weight * trees["tree_loss"], shown | trees)

    @staticmethod
    def evaluate(model: nn.Module, held: Vocabulary, text: Corpus, how: Mapping[str, Any]) -> Evaluation:
        """Perplexity, and bits per character where tokens are not words. Args: how: as for `gatedrnn.tasks.perplexity`."""
        batch_size, reset, _, cache, dynamic = (how[name] for name in LanguageModelling.reads)
        size, temperature = positive_int("--batch-size", batch_size), _temperature(model, held, how)
        result = evaluate(
            model,
            text["text"],
            held,
            batch_size=size,
            reset=reset,
            temperature=temperature,
            cache=cache,
            dynamic=dynamic,
        )
        found: dict[str, Any] = asdict(result)
        lines = [
            f"perplexity {result.perplexity:.4f}  loss {result.loss_nats:.5f} nats per token  {result.tokens} tokens"
        ]
        if held.level != "word":
            characters = text.characters["text"]
            found["bits_per_character"] = result.loss_nats * result.tokens / (math.log(2) * characters)
            counted = f"{characters} characters, line ends included"
            lines.append(f"{found['bits_per_character']:.4f} bits per character  {counted}")
        settings = {name: _settings(what) for name, what in (("cache", cache), ("dynamic", dynamic)) if what}
        named = {"cache": "continuous cache", "dynamic": "dynamic evaluation"}
        state = "state reset at each sentence" if reset else f"state carried, batch size {batch_size}"
        added = [f"{named[k]} ({', '.join(f'{name} {x:g}' for name, x in s.items())})" for k, s in settings.items()]
        if temperature != 1 or how["temperature"] == "auto":
            found["temperature"] = temperature
            without = ", without cache and dynamic evaluation" if settings else ""
            best = f" (best on valid{without})" if how["temperature"] == "auto" else ""
            added.append(f"temperature {temperature:g}{best}")
        unknown = text.unknown["text"]
        told = f"{unknown} tokens ({100 * unknown / result.tokens:.1f} %) are <unk>"
        return Evaluation(
            found | ({"state": "reset"} if reset else {}) | settings, [*lines, "; ".join([state, *added, told])]
        )

    @staticmethod
    def rate(
        model: nn.Module, held: Vocabulary, text: Corpus, batch_size: int, most: int | None = None
    ) -> tuple[float, int]:
        """Perplexity."""
        tokens = text["text"][:most]
        return evaluate(model, tokens, held, batch_size=batch_size).perplexity, len(tokens)

    @staticmethod
    def gates(model: Any, held: Vocabulary, text: Corpus, batch_size: int) -> Iterator[list[LayerGates]]:
        """Of the stream, in `batch_size` stretches."""
        return stream_gates(model, text["text"], held.ids[EOS], batch_size)

    @staticmethod
    def gates_by_word(model: Any, held: Vocabulary, sentence: str, mapping: str) -> WordGates:
        """Of a sentence by itself."""
        return gates_by_word(model, held, sentence, mapping)


_COLDEST = 0.001  # below it, logits overflow


def _reset(states: Any, probability: float) -> Any:
    """Carried states by layer, with those of each stretch set to zero with this probability."""
    if states is None or not probability:
        return states
    first = states[0][0]
    kept_B1 = (torch.rand(first.shape[-2], device=first.device) >= probability)[:, None]
    return [tuple(torch.where(kept_B1, state, 0) for state in layer) for layer in states]


def _temperature(model: nn.Module, held: Vocabulary, how: Mapping[str, Any]) -> float:
    """What logits are divided by. Raises: ArgumentError: no number from 0.001 on and not "auto", or beside a reset."""
    auto, found = how["temperature"] == "auto", math.nan
    with suppress(ValueError):
        found = float(how["temperature"])
    if how["reset"] and found != 1:
        rule, advice = "cannot be combined with --reset", "Leave one of them out"
        raise ArgumentError("--temperature", rule, how["temperature"], advice)
    if auto:
        return best_temperature(model, how["valid"]["text"], held)
    if not _COLDEST <= found < math.inf:
        rule = f"must be a number of at least {_COLDEST:g}, or auto"
        raise ArgumentError("--temperature", rule, repr(how["temperature"]), "Write --temperature 0.95")
    return found


def _settings(what: Any) -> dict[str, float]:
    return {name.rstrip("_"): value for name, value in asdict(what).items()}
