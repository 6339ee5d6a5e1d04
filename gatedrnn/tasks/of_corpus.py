"""What tasks that learn from a corpus of plain text have in common: vocabulary, splits, and what a run holds of them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, Corpus, DataConfig, Vocabulary, find_splits, write_corpus
from gatedrnn.data.text import rereadable
from gatedrnn.data.vocabulary import VOCABULARY_FILE
from gatedrnn.models.saving import check_vocabulary
from gatedrnn.tasks.text import checksum, loss_and_perplexity


class OfCorpus:
    """A part of a `Task`. Args: corpus: with splits train and valid."""

    network: ClassVar[Any]

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._eos = corpus.vocabulary.ids[EOS]

    @staticmethod
    def make(folder: Path, seed: int, data: Any) -> None:
        """Write a text of the built-in grammar."""
        write_corpus(folder, seed)

    @classmethod
    def load(cls, folder: Path, model: Any, backend: str) -> tuple[Any, Vocabulary]:
        """A run's model and vocabulary. Raises: CheckpointError: the vocabulary is of another size than the model's."""
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        check_vocabulary(folder / VOCABULARY_FILE, vocabulary, model.vocabulary_size)
        return cls.network.from_pretrained(folder, backend=backend, vocabulary=vocabulary), vocabulary

    @property
    def splits(self) -> Collection[str]:
        """The names of the splits that exist."""
        return self.corpus.files

    def complete(self, model: Any) -> Any:
        """With the vocabulary's size."""
        return replace(model, vocabulary_size=len(self.corpus.vocabulary))

    def checksum(self, split: str) -> int:
        """Of a split's tokens."""
        return checksum(self.corpus[split])

    def write(self, folder: Path) -> None:
        """The vocabulary."""
        self.corpus.vocabulary.save(folder / VOCABULARY_FILE)

    def cache(self, folder: Path) -> None:
        """Token arrays."""
        self.corpus.cache(folder)

    def shown(self, nats: float) -> dict[str, float]:
        """Loss and perplexity."""
        return loss_and_perplexity(nats)

    @staticmethod
    def text(held: Vocabulary, data: DataConfig, folder: Path | str, split: str = "test", path: Any = None) -> Corpus:
        """A corpus whose only split is `text`."""
        files: Any = {split: rereadable(path)} if path is not None else find_splits(folder)
        if split not in files:
            raise DataError(str(folder), f"must hold a {split} text", ", ".join(files), "Give another one with --data")
        return Corpus({"text": files[split]}, held, empty_lines=data.empty_lines)
