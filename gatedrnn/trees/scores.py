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

import numpy as np

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.trees.gold import Gold
from gatedrnn.trees.spans import Span

PROTOCOLS = ("A", "AW", "B", "B_star", "corpus")


@dataclass(frozen=True)
class Score:
    """F1 in percent by protocol, and how many sentences A and B averaged; B, B* and corpus are None where B averaged none."""

    A: float
    AW: float
    B: float | None
    B_star: float | None
    corpus: float | None
    sentences_A: int
    sentences_B: int

    def as_dict(self) -> dict[str, float | None]:
        """{A, AW, B, B_star, corpus} in percent."""
        return {name: getattr(self, name) for name in PROTOCOLS}


def score(predicted: Sequence[Set[Span]], gold: Sequence[Gold]) -> Score:
    """Score one tree a sentence.

    Args:
        predicted: spans of each tree over the gold's kept words; the whole sentence may be among them or not.
        gold: as many; sentences with no word are skipped.

    Raises: ArgumentError: the numbers of trees differ. DataError: no sentence has a word.
    """
    values = per_sentence(predicted, gold)
    found = _percent(values, np.ones((1, len(values))))[0]
    long = int(values[:, _LONG].sum())
    return Score(*map(_known, found), sentences_A=len(values), sentences_B=long)  # type: ignore[arg-type]


def bootstrap(
    predicted: Sequence[Set[Span]], gold: Sequence[Gold], samples: int = 1000, seed: int = 1
) -> dict[str, tuple[float, float] | None]:
    """95 % interval of each protocol's F1: sentences drawn with replacement, `samples` times; the 2.5 and 97.5 percentiles.

    Arguments and errors as `score`. It tells of the choice of sentences, not of the model's seed. Samples without a sentence
    that a protocol counts are left out; None where that is every sample.
    """
    return bootstrap_mean([predicted], gold, samples, seed)


def bootstrap_mean(
    runs: Sequence[Sequence[Set[Span]]], gold: Sequence[Gold], samples: int = 1000, seed: int = 1
) -> dict[str, tuple[float, float] | None]:
    """`bootstrap` of the mean F1 of several parses of the same sentences. Args: runs: each as `predicted`."""
    values = [per_sentence(predicted, gold) for predicted in runs]
    generator = np.random.default_rng(seed)
    found = []
    for start in range(0, samples, 100):  # 100 rows of counts at a time
        drawn = generator.integers(0, len(values[0]), (min(100, samples - start), len(values[0])))
        counts = np.stack([np.bincount(row, minlength=len(values[0])) for row in drawn])
        found.append(np.mean([_percent(each, counts) for each in values], 0))
    return dict(zip(PROTOCOLS, map(_interval, np.concatenate(found).T), strict=True))


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def per_sentence(predicted: Sequence[Set[Span]], gold: Sequence[Gold]) -> np.ndarray:
    """What each sentence with a word brings [sentences, 7]: F1 of A, AW, B*; whether B counts it; its TP, FP and FN.

    Raises: as `score`.
    """
    if len(predicted) != len(gold):
        rule, got = "must have one predicted tree per gold tree", f"{len(predicted)} and {len(gold)}"
        raise ArgumentError("score", rule, got, "Check that no sentence was dropped")
    rows = []
    for spans, tree in zip(predicted, gold, strict=True):
        if not len(tree):
            continue
        whole = {tree.whole}
        p, g = set(spans) - whole, set(tree.spans) - whole
        inner = sentence_f1(p, g)
        if len(tree) == 1:
            rows.append((inner, inner, 0.0, 0.0, 0.0, 0.0, 0.0))
            continue
        star = sentence_f1(p, g | whole) if tree.whole_below_root >= 2 else inner
        rows.append((inner, sentence_f1(p | whole, g | whole), star, 1.0, len(p & g), len(p - g), len(g - p)))
    if not rows:
        raise DataError("score", "must have a sentence with a word that counts", 0, "Choose another word rule")
    return np.array(rows)


_A, _AW, _STAR, _LONG, _HIT, _EXTRA, _MISSED = range(7)


def _percent(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """F1 in percent by `PROTOCOLS` [samples, 5], each sentence counted so many times [samples, sentences].

    NaN where B counts no sentence; `corpus` is 100 where there is no span in the sentences that it counts.
    """
    sums, number = counts @ values, counts.sum(1)
    long = sums[:, _LONG]
    none = np.where(long > 0, 1.0, np.nan)
    b = np.divide((counts * values[:, _LONG]) @ values[:, _A], long, out=none.copy(), where=long > 0)
    star = np.divide(sums[:, _STAR], long, out=none.copy(), where=long > 0)
    everything = 2 * sums[:, _HIT] + sums[:, _EXTRA] + sums[:, _MISSED]
    corpus = np.divide(2 * sums[:, _HIT], everything, out=none.copy(), where=everything > 0)
    return 100.0 * np.stack([sums[:, _A] / number, sums[:, _AW] / number, b, star, corpus], 1)


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


def agreement(one: Sequence[Set[Span]], other: Sequence[Set[Span]], lengths: Sequence[int]) -> float:
    """Mean F1 in percent of two parsers' trees against each other, as protocol B: the whole sentence and single words left out.

    Args: spans of each tree, and words of each sentence. 100 where no sentence has two words.
    """
    found = [
        sentence_f1(set(a) - {(0, n)}, set(b) - {(0, n)}) for a, b, n in zip(one, other, lengths, strict=True) if n > 1
    ]
    return 100.0 * sum(found) / len(found) if found else 100.0


def depth(spans: Set[Span], n: int) -> int:
    """The most spans of width ≥ 2, the whole sentence among them, that lie over one word; 0 for one word."""
    edges = np.zeros(n + 1, dtype=int)
    for i, j in {*spans, (0, n)} if n > 1 else ():
        edges[i] += 1
        edges[j] -= 1
    return int(edges.cumsum().max())
