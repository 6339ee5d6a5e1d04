"""Unlabelled F1 of predicted spans against gold, by the protocols in use.

A       ON-LSTM and PRPN: the whole-sentence span counts in neither set; every sentence with a word is averaged (one and two
        words score 1).
AW      as A with the whole sentence in both sets: for comparison with older figures.
B       modern and strict: as A, one-word sentences skipped.
B_star  the compound-PCFG code: as B, but a unary chain over the whole sentence leaves its span in gold.
corpus  B's counts summed over sentences: 2TP / (2TP + FP + FN).

Sentence F1: P = |p∩g| / (|p| + 1e-8), R likewise; an empty g gives R = 1, and P = 1 if p is empty too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.trees.gold import Gold
from gatedrnn.trees.spans import Span

PROTOCOLS = ("A", "AW", "B", "B_star", "corpus")


@dataclass(frozen=True)
class Score:
    """F1 in percent by protocol, and how many sentences A and B averaged."""

    A: float
    AW: float
    B: float
    B_star: float
    corpus: float
    sentences_A: int
    sentences_B: int

    def as_dict(self) -> dict[str, float]:
        """{A, AW, B, B_star, corpus} in percent."""
        return {name: getattr(self, name) for name in PROTOCOLS}


def score(predicted: Sequence[Set[Span]], gold: Sequence[Gold]) -> Score:
    """Score one tree a sentence.

    Args:
        predicted: spans of each tree over the gold's kept words; the whole sentence may be among them or not.
        gold: as many; sentences with no word are skipped.

    Raises: ArgumentError: the numbers of trees differ. DataError: no sentence has a word.
    """
    if len(predicted) != len(gold):
        got = f"{len(predicted)} and {len(gold)}"
        raise ArgumentError(
            "score", "must have one predicted tree a gold tree", got, "Check that no sentence was dropped"
        )
    totals = dict.fromkeys(PROTOCOLS, 0.0)
    count_a = count_b = hit = extra = missed = 0
    for spans, tree in zip(predicted, gold, strict=True):
        if not len(tree):
            continue
        whole = {tree.whole}
        p, g = set(spans) - whole, set(tree.spans) - whole
        count_a += 1
        inner = sentence_f1(p, g)
        totals["A"] += inner
        totals["AW"] += sentence_f1(p | whole, g | whole) if len(tree) >= 2 else inner
        if len(tree) == 1:
            continue
        count_b += 1
        totals["B"] += inner
        totals["B_star"] += sentence_f1(p, g | whole) if tree.whole_below_root >= 2 else inner
        hit, extra, missed = hit + len(p & g), extra + len(p - g), missed + len(g - p)
    if not count_a:
        raise DataError("score", "must have a sentence with a word that counts", 0, "Choose another word rule")
    everything = 2 * hit + extra + missed
    corpus = 200.0 * hit / everything if everything else 100.0
    percent = {name: 100.0 * totals[name] / count_a for name in ("A", "AW")}
    percent |= {name: 100.0 * totals[name] / count_b if count_b else 100.0 for name in ("B", "B_star")}
    return Score(**percent, corpus=corpus, sentences_A=count_a, sentences_B=count_b)


def sentence_f1(predicted: Set[Span], gold: Set[Span]) -> float:
    """F1 of two sets of spans in [0, 1], with the conventions of the module's docstring."""
    both = len(predicted & gold)
    precision = both / (len(predicted) + 1e-8)
    recall = both / (len(gold) + 1e-8)
    if not gold:
        recall = 1.0
        if not predicted:
            precision = 1.0
    return 2 * precision * recall / (precision + recall + 1e-8)


def label_recall(predicted: Iterable[Set[Span]], gold: Iterable[Gold]) -> dict[str, dict[str, float]]:
    """Recall of gold constituents by label, the whole sentence left out: {label: {recall in percent, count}}, frequent first."""
    found: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for spans, tree in zip(predicted, gold, strict=True):
        for label, span in set(tree.labelled):
            if span != tree.whole:
                total[label] += 1
                found[label] += span in spans
    return {label: {"recall": 100.0 * found[label] / n, "count": n} for label, n in total.most_common()}
