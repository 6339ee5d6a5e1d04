"""Translation: predict each token of a sentence's translation, by an encoder, a decoder and attention."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import nn

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, Vocabulary
from gatedrnn.data.config import ParallelDataConfig
from gatedrnn.data.parallel import (
    Parallel,
    TextPair,
    TranslationBatch,
    encoded,
    learn_vocabularies,
    not_longer,
    read_parallel,
    read_split,
    read_text_pair,
    single_spaced,
    translation_batches,
)
from gatedrnn.data.ragged import Ragged, by_length, within
from gatedrnn.data.text import rereadable
from gatedrnn.data.verb_final import SOURCE, TARGET, write_parallel
from gatedrnn.models import TranslationConfig, TranslationModel
from gatedrnn.models.beam import Beam, Hypothesis, translate
from gatedrnn.models.finite import finite
from gatedrnn.models.saving import check_vocabulary
from gatedrnn.models.surprisal import evaluating
from gatedrnn.tasks.config import WINDOWS, TrainingConfig
from gatedrnn.tasks.gates import LayerGates, WordGates, layer_gates, looked_up, word_gates
from gatedrnn.tasks.task import Batches, Evaluation, Loss, Score
from gatedrnn.tasks.text import checksum, loss_and_perplexity, on

_FILES = ("vocabulary.source.json", "vocabulary.target.json", "tokenizer.source.json", "tokenizer.target.json")
TOGETHER = 64
"""Sentences that are translated at once."""
_PLACES = 1 << 16  # of a batch that is searched: tokens of the sources, once for each hypothesis
_SCORES = 1 << 25  # of a step of a search, or of attention between two sides
_APART = 0.9  # of the full stops at ends of lines
_SORTED = 2048  # sentences that are read before the first is translated


@dataclass(frozen=True)
class Languages:
    """The vocabularies of a translation model's two sides."""

    source: Vocabulary
    target: Vocabulary

    def written(self, ids: list[int]) -> str:
        """A translation's tokens as one line of text."""
        return " ".join(re.split(r"[\r\n]", self.target.text(self.target.decode(ids))))


@final
class Translation:
    """The task; see `Task`.

    Args:
        text: of the splits train and valid.
        data: the section `data`.
        languages: None to learn them from the training text.
    """

    name: ClassVar[str] = "translation"
    data: ClassVar[type] = ParallelDataConfig
    network: ClassVar[Any] = TranslationModel
    measure: ClassVar[str] = "perplexity"
    rated: ClassVar[str] = "bleu"
    reads: ClassVar[tuple[str, ...]] = ("beam", "tokenize")
    unit: ClassVar[str] = "tokens"
    files: ClassVar[tuple[str, ...]] = _FILES
    training: ClassVar[TrainingConfig] = TrainingConfig(
        epochs=10, batch_size=64, learning_rate=0.001, evaluation_batch_size=64, plateau_threshold=0.0
    )
    ignores: ClassVar[tuple[str, ...]] = WINDOWS

    def __init__(self, text: dict[str, TextPair], data: ParallelDataConfig, languages: Languages | None = None) -> None:
        self.settings = data
        self.languages = languages or Languages(*learn_vocabularies(text["train"], data))
        self.pairs = {name: Parallel(pair, self.languages.source, self.languages.target) for name, pair in text.items()}

    @classmethod
    def open(cls, data: ParallelDataConfig, folder: Path | str, run: Path | None = None) -> "Translation":
        """Read a folder's parallel text, with the vocabularies of a run that has begun.

        Raises: DataError: as `read_parallel`; every pair to train on is longer than `data.longest`.
        """
        task = cls(read_parallel(folder, data), data, None if run is None else _languages(run))
        not_longer(task.pairs["train"], data.longest)
        return task

    @staticmethod
    def make(folder: Path, seed: int, data: ParallelDataConfig) -> None:
        """Write the built-in pair of languages. Raises: ArgumentError: others are asked for."""
        if {data.source, data.target} != {SOURCE, TARGET}:
            rule = f"must be {SOURCE} or {TARGET} for the built-in pair of languages"
            got = f"{data.source} to {data.target} without a folder"
            raise ArgumentError("data.source", rule, got, "Add --data DIR")
        write_parallel(folder, seed)

    @staticmethod
    def load(folder: Path, model: TranslationConfig, backend: str) -> tuple[TranslationModel, Languages]:
        """A run's model and vocabularies. Raises: CheckpointError: a vocabulary is of another size than the model's."""
        languages = _languages(folder)
        check_vocabulary(folder / _FILES[0], languages.source, model.vocabulary_size)
        check_vocabulary(folder / _FILES[1], languages.target, model.target_size, "target_size")
        return TranslationModel.from_pretrained(folder, backend=backend), languages

    @property
    def splits(self) -> Collection[str]:
        """Those that there are."""
        return self.pairs

    def describe(self) -> str:
        """Pairs and tokens by split, and the sizes of the vocabularies."""
        sizes = ", ".join(f"{split} {len(pairs):,}" for split, pairs in self.pairs.items())
        source, target = self.languages.source, self.languages.target
        held = f"{len(source):,} tokens" if self.settings.joint else f"{len(source):,} and {len(target):,} tokens"
        longest = int((self.pairs["train"].lengths().max(1) > self.settings.longest).sum())
        left = f"; {longest:,} longer than {self.settings.longest} tokens are left out" if longest else ""
        return f"pairs of sentences: {sizes}; {held}{left}"

    def complete(self, model: TranslationConfig) -> TranslationConfig:
        """With the sizes of the vocabularies, and whether it is one."""
        sizes = {"vocabulary_size": len(self.languages.source), "target_size": len(self.languages.target)}
        return replace(model, **sizes, shared_embedding=self.settings.joint)

    def checksum(self, split: str) -> int:
        """Of a split's tokens."""
        pairs = self.pairs[split]
        return checksum(*(each for side in (pairs.source, pairs.target) for each in (side.lengths_N, side.tokens)))

    def write(self, folder: Path) -> None:
        """Both vocabularies, which may be one."""
        self.languages.source.save(folder / _FILES[0])
        self.languages.target.save(folder / _FILES[1])

    def cache(self, folder: Path) -> None:
        """Nothing: a text is read within seconds."""

    def batches(self, training: TrainingConfig, epoch: int) -> Batches:
        """Pairs of about one length."""
        pairs, longest = self.pairs["train"], self.settings.longest
        return translation_batches(pairs, training.batch_size, longest, training.seed, epoch)

    def loss(
        self, model: nn.Module, training: TrainingConfig, batch: TranslationBatch, carried: Any, divisor: float,
        device: torch.device,
    ) -> Loss:  # fmt: skip
        """Cross-entropy of the next token; smoothed labels add to the gradient alone."""
        found = model(*(on(device, array) for array in batch.arrays), divisor=divisor)
        return Loss(found.nats, found.smoothing)

    def score(self, model: nn.Module, training: TrainingConfig, split: str = "valid") -> Score:
        """Perplexity of the translations that are given."""
        nats = _nats(model, self.pairs[split], training.evaluation_batch_size)
        return Score(nats, self.shown(nats))

    def shown(self, nats: float) -> dict[str, float]:
        """Loss and perplexity."""
        return loss_and_perplexity(nats)

    @staticmethod
    def text(
        held: Languages, data: ParallelDataConfig, folder: Path | str, split: str = "test", path: Any = None
    ) -> TextPair:
        """Lines and their translations."""
        found = read_split(folder, split, data) if path is None else read_text_pair(rereadable(path), data)
        if found is None:
            raise DataError(str(folder), f"must hold a {split} text", "none", "Give another one with --data")
        return found

    @staticmethod
    def evaluate(model: nn.Module, held: Languages, text: TextPair, how: Mapping[str, Any]) -> Evaluation:
        """BLEU and chrF of the best translations, with their signatures.

        Args: how: beam, None for the default; tokenize of BLEU, None for none where references look tokenised, else 13a.
        """
        beam, tokenize = how["beam"] or Beam(), how["tokenize"] or _tokenization(text.target)
        found = _rated(model, held, text, beam, tokenize)
        lines = [f"BLEU {found['bleu']:.2f}  chrF {found['chrf']:.2f}  {len(text.source)} sentences"]
        lines += [f"beam {found['beam']}, alpha {found['alpha']:g}"]
        return Evaluation(found, [*lines, f"BLEU: {found['bleu_signature']}", f"chrF: {found['chrf_signature']}"])

    @staticmethod
    def rate(
        model: nn.Module, held: Languages, text: TextPair, batch_size: int, most: int | None = None
    ) -> tuple[float, int]:
        """BLEU; tokens of the sources are counted."""
        sizes = np.cumsum([len(each) for each in encoded(text.source, held.source)])
        count = len(sizes) if most is None else min(len(sizes), 1 + int(np.searchsorted(sizes, most)))
        part = TextPair(text.source[:count], text.target[:count])
        found = _rated(model, held, part, Beam(), _tokenization(text.target), batch_size)
        return found["bleu"], int(sizes[count - 1])

    @staticmethod
    def gates(model: Any, held: Languages, text: TextPair, batch_size: int) -> Iterator[list[LayerGates]]:
        """Of the encoder over the sources, of the decoder over their given translations."""
        pairs, device = Parallel(text, held.source, held.target), next(model.parameters()).device
        for chosen in by_length(pairs.lengths(), batch_size):
            batch = pairs.batch(chosen)
            source_TB, source_B = on(device, batch.source_TB), on(device, batch.source_B)
            with torch.no_grad(), evaluating(model):
                source = model.encode(source_TB, source_B, return_gates=True)
                found = model.decode(source, on(device, batch.inputs_TB), on(device, batch.target_B), return_gates=True)
            counted = [torch.from_numpy(np.arange(len(ids))[:, None] < lengths)
                       for ids, lengths in ((source_TB, batch.source_B), (batch.inputs_TB, batch.target_B))]  # fmt: skip
            yield [
                *layer_gates(model.encoder.layers, source.traces, counted[0], "encoder "),
                *layer_gates(model.layers, found.traces, counted[1], "decoder "),
            ]

    @staticmethod
    def gates_by_word(model: Any, held: Languages, sentence: str, mapping: str) -> WordGates:
        """Of the encoder at a sentence's tokens, and of the decoder where it predicts each token of the best translation."""
        tokens, ids = looked_up(held.source, single_spaced(sentence), mapping)
        device, eos = next(model.parameters()).device, held.source.ids[EOS]
        source_T1, source_1 = torch.tensor([*ids, eos], device=device)[:, None], torch.tensor([len(ids) + 1])
        ((best,),) = translate(model, source_T1, source_1, Beam())
        with torch.no_grad(), evaluating(model):
            source = model.encode(source_T1, source_1, return_gates=True)
            inputs_T1 = torch.tensor([held.target.ids[EOS], *best.ids], device=device)[:, None]
            found = model.decode(source, inputs_T1, return_gates=True)
        written = word_gates([*held.target.readable(held.target.decode(best.ids)), EOS], model.layers, found.traces)
        shares = found.attention[:, 0].tolist()
        return word_gates([*tokens, EOS], model.encoder.layers, source.traces, translation=written, attention=shares)


def _rated(
    model: Any, languages: Languages, text: TextPair, beam: Beam, tokenize: str, together: int = TOGETHER
) -> dict[str, Any]:
    one, metrics = replace(beam, n_best=1), _metrics(tokenize)
    each = translations(model, languages, text.source, one, together)
    found = [languages.written(best[0].ids) for _, best in each]
    scores = _scores(metrics, found, text.target)
    return {"sentences": len(found), **scores, "beam": beam.size, "alpha": beam.alpha}


def _tokenization(references: list[str]) -> str:
    """none where full stops stand apart from words, as in text that is tokenised already; else 13a."""
    ends = [line.rstrip() for line in references if line.rstrip().endswith((*".?!。？！",))]
    apart = sum(line[-2:-1].isspace() for line in ends)
    return "none" if ends and apart > _APART * len(ends) else "13a"


def _languages(folder: Path) -> Languages:
    return Languages(Vocabulary.load(folder / _FILES[0]), Vocabulary.load(folder / _FILES[1]))


@torch.no_grad()
def _nats(model: nn.Module, pairs: Parallel, batch_size: int) -> float:
    """Mean loss of a token. Raises: CheckpointError: it is not finite."""
    device, total, count = next(model.parameters()).device, torch.zeros((), dtype=torch.float64), 0
    with evaluating(model):
        lengths_N2 = pairs.lengths()
        for chosen in within(by_length(lengths_N2, batch_size), lengths_N2, _SCORES):
            batch = pairs.batch(chosen)
            nats = model(*(on(device, array) for array in batch.arrays), divisor=1.0).nats
            total += nats.cpu().double()
            count += batch.count
    return float(finite("perplexity", total / count))


def translations(
    model: TranslationModel, languages: Languages, lines: Iterable[str], beam: Beam, together: int = TOGETHER
) -> Iterator[tuple[list[str], list[Hypothesis]]]:
    """The source's tokens and the best translations of each line, in order; of an empty line, nothing.

    Lines are read some thousands at a time and translated in batches of about one length.
    """
    remaining = iter(lines)
    while held := list(islice(remaining, _SORTED)):
        yield from _translated(model, languages, held, beam, together)


def _translated(
    model: TranslationModel, languages: Languages, lines: list[str], beam: Beam, together: int
) -> Iterator[tuple[list[str], list[Hypothesis]]]:
    full = [k for k, line in enumerate(lines) if line.strip()]
    ids = encoded([lines[k] for k in full], languages.source)
    sources, device = Ragged.of(ids), next(model.parameters()).device
    found: dict[int, list[Hypothesis]] = {}
    together = min(together, max(1, _SCORES // (beam.size * len(languages.target))))
    for chosen in within(
        by_length(sources.lengths_N[:, None], together), sources.lengths_N[:, None] * beam.size, _PLACES
    ):
        source_TB, source_B = sources.batch(chosen)
        best = translate(model, on(device, source_TB), on(device, source_B), beam)
        found |= {full[n]: one for n, one in zip(chosen, best, strict=True)}
    tokens = {k: languages.source.readable(languages.source.decode(row[:-1])) for k, row in zip(full, ids, strict=True)}
    for k in range(len(lines)):
        yield tokens.get(k, []), found.get(k, [])


def _metrics(tokenize: str) -> dict[str, Any]:
    """sacrebleu's metrics by name. Raises: ArgumentError: it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        advice = "Install it: pip install 'gatedrnn[mt]'"
        raise ArgumentError("evaluate", "needs sacrebleu to score translations", "no such module", advice) from error
    return {"bleu": BLEU(tokenize=tokenize, force=True), "chrf": CHRF()}


def _scores(metrics: dict[str, Any], hypotheses: list[str], references: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        found[name] = metric.corpus_score(hypotheses, [references]).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found
