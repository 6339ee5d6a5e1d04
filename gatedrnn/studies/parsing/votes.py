"""Votes of several runs: what each counts, what each adds, and trees of plain sentences by a vote."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees import Bracketed, Span, consensus
from gatedrnn.trees.baselines import right
from gatedrnn.trees.consensus import LONGEST

PRIOR = "right"
"""The family whose only voter is the right-branching tree of each sentence: a prior, learned from nothing."""


def voter_weights(families: Sequence[str], told: Mapping[str, float] | None = None) -> list[float] | None:
    """What the vote of each voter counts: every family the same, or as much as it is told to.

    Args:
        families: of each voter.
        told: the weight of all voters of a family together; 1 for a family that it does not name.

    Returns: a weight for each voter; None where all are of one family.
    Raises: ArgumentError: a weight that is not above 0, or of a family without a voter.
    """
    told = told or {}
    for family, weight in told.items():
        if not (isfinite(weight) and weight > 0):
            advice = "Leave the runs of the family out to give them no vote"
            raise ArgumentError("weight", "must be a finite number above 0", f"{family}={weight:g}", advice)
        if family not in families:
            known = ", ".join(dict.fromkeys([*families, PRIOR]))
            raise ArgumentError("weight", f"must name a family among the voters: {known}", family, "Correct the name")
    if len(set(families)) < 2:
        return None
    return [told.get(family, 1.0) / families.count(family) for family in families]


@dataclass(frozen=True)
class Vote(Bracketed):
    """One sentence's tree by a vote.

    Args:
        words, spans: as in `Bracketed`.
        voters: spans of each voter's tree; a prior has none.
    """

    voters: list[set[Span]]

    def record(self) -> dict[str, Any]:
        """As `parse --json` prints it."""
        each = [Bracketed(self.words, spans).brackets for spans in self.voters]
        return {"words": self.words, "tree": self.brackets, "voters": each}


def vote(
    voters: Sequence[Iterable[Bracketed]], families: Sequence[str], weights: Mapping[str, float] | None = None
) -> Iterator[Vote]:
    """Trees by a vote, in order, in constant memory for any number of sentences.

    Args:
        voters: the parses of each voter, all of the same sentences.
        families: of each voter; all voters of a family together count as much as all of another.
        weights: the weight of a family, as in `voter_weights`; that of `PRIOR` adds a right-branching tree.

    Raises: ArgumentError: no voter, a weight that does not fit, or voters that read different words.
    """
    prior = PRIOR in (weights or {})
    if not voters or len(voters) != len(families):
        got = f"{len(voters)} voters, {len(families)} families"
        raise ArgumentError("vote", "needs at least one voter, and a family for each", got, "Give the parses of a run")
    counted = voter_weights([*families, *([PRIOR] if prior else [])], weights)
    return _votes(voters, counted, prior)


def _votes(voters: Sequence[Iterable[Bracketed]], weights: Sequence[float] | None, prior: bool) -> Iterator[Vote]:
    for number, each in enumerate(zip(*voters, strict=True), 1):
        words, spans = each[0].words, [parsed.spans for parsed in each]
        other = next((parsed.words for parsed in each if list(parsed.words) != list(words)), None)
        if other is not None:
            got = f"in sentence {number}, {' '.join(words)!r} and {' '.join(other)!r}"
            raise ArgumentError(
                "vote", "needs voters that read the same words", got, "Set data.tokenize alike in all runs"
            )
        yield Vote(words, agreed([*spans, *([right(len(words))] if prior else [])], len(words), weights), spans)


def agreed(trees: Sequence[set[Span]], n: int, weights: Sequence[float] | None) -> set[Span]:
    """The consensus of trees over n words; the first one where there is no word, or too many for a consensus."""
    return consensus(trees, n, weights) if 0 < n <= LONGEST else trees[0]
