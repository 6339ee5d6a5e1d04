"""Trees of plain sentences by a grammar: of each sentence the tree whose spans are the most probable."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any

import numpy as np
import torch

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import MAPPINGS, Vocabulary
from gatedrnn.data.ragged import Ragged
from gatedrnn.data.sentences import SHORTEST, by_room
from gatedrnn.models.grammar import LONGEST, SPANS_AT_ONCE, Grammar
from gatedrnn.models.surprisal import evaluating
from gatedrnn.trees import ALGORITHMS, Bracketed, Gold, Span, best_tree

_SORTED_SENTENCES = 2048


@dataclass(frozen=True)
class GrammarParse(Bracketed):
    """One sentence's tree.

    Args:
        words, spans: as in `Bracketed`.
        log_likelihood_nats: log P of the words; None for fewer than two, which the grammar has no tree for.
    """

    log_likelihood_nats: float | None

    def record(self) -> dict[str, Any]:
        """As `parse --json` prints it."""
        return {"words": self.words, "tree": self.brackets, "log_likelihood_nats": self.log_likelihood_nats}


def parse_by_grammar(
    model: Grammar, vocabulary: Vocabulary, sentences: Iterable[Sequence[str]], mapping: str = "number"
) -> Iterator[GrammarParse]:
    """Parse sentences, in order, in constant memory for any number of them; one without a word has an empty tree.

    Equations: Goodman 1996: the binary tree with the greatest sum of its spans' probabilities, which has the greatest
        expected number of right spans. Departs: none.
    Args:
        sentences: words of each, at most 300.
        mapping: as in `Vocabulary.encode_foreign`.

    Raises: ArgumentError: an unknown mapping, or a sentence that is too long. CheckpointError: the model is damaged.
    """
    one_of("mapping", mapping, MAPPINGS)
    vocabulary.require_words("parse")
    given, again = tee(sentences)
    each = _read(model, (vocabulary.encode_foreign(words, mapping) for words in again))
    return (GrammarParse(list(words), *found) for words, found in zip(given, each, strict=True))


def parse_lines_by_grammar(
    model: Grammar, vocabulary: Vocabulary, lines: Iterable[str], mapping: str = "number"
) -> Iterator[GrammarParse]:
    """The same of lines of text. Raises: as `parse_by_grammar`."""
    return parse_by_grammar(model, vocabulary, (vocabulary.tokens(line) for line in lines), mapping)


def grammar_trees(
    model: Grammar, vocabulary: Vocabulary, gold: Sequence[Gold], mapping: str = "number"
) -> dict[str, list[set[Span]]]:
    """Trees over the kept words of every gold tree, without a look at the trees; the same for each algorithm.

    Raises: as `parse_by_grammar`.
    """
    found = [parse.spans for parse in parse_by_grammar(model, vocabulary, (tree.words for tree in gold), mapping)]
    return dict.fromkeys(ALGORITHMS, found)


def _read(model: Grammar, sentences: Iterator[list[int]]) -> Iterator[tuple[set[Span], float | None]]:
    """Spans and log-likelihood of each sentence."""
    first = 1
    with evaluating(model):
        while chunk := list(islice(sentences, _SORTED_SENTENCES)):
            long = next((k for k, ids in enumerate(chunk) if len(ids) > LONGEST), None)
            if long is not None:
                got = f"{len(chunk[long])} in sentence {first + long}"
                advice = "Shorten it, or parse it with a run of language_modelling"
                raise ArgumentError("parse", f"takes at most {LONGEST} words with a grammar", got, advice)
            read = [k for k, ids in enumerate(chunk) if len(ids) >= SHORTEST]
            found = dict(zip(read, _trees(model, Ragged.of(chunk[k] for k in read)), strict=True))
            yield from (found.get(k, (set(), None)) for k in range(len(chunk)))
            first += len(chunk)


def _trees(model: Grammar, sentences: Ragged) -> list[tuple[set[Span], float]]:
    device = model.symbols.device
    found: list[tuple[set[Span], float]] = [(set(), 0.0)] * len(sentences)
    for chosen in by_room(sentences, SPANS_AT_ONCE):
        ids_TB, lengths_B = (torch.from_numpy(each).to(device) for each in sentences.batch(chosen))
        spans_BTT, log_B = model.spans(ids_TB, lengths_B)
        each = zip(chosen, spans_BTT.cpu().double().numpy(), lengths_B.tolist(), log_B.tolist(), strict=True)
        for k, spans_TT, length, log in each:
            worth = np.zeros((length + 1, length + 1))
            worth[:-1, 1:] = spans_TT[:length, :length]
            found[k] = best_tree(worth), log
    return found
