"""Batches of sentences: their order, and their parts for several processes."""

import numpy as np
import pytest

from gatedrnn.data.batching import PAD_TARGET, SentenceBatches, Window, window_lengths
from gatedrnn.data.labelled import PairBatch
from gatedrnn.data.parallel import TranslationBatch
from gatedrnn.data.sentences import SentenceBatch, of_length, sentence_batches

EOS = 1


@pytest.mark.parametrize("size", [1, 3, 4, 50])
def test_sentences_are_drawn_as_they_always_were(size):
    """The order that runs of earlier versions had, which a resumed run must go on with."""
    draw = np.random.default_rng(7)
    sentences = [draw.integers(2, 9, draw.integers(1, 6)) for _ in range(20)]
    tokens = np.concatenate([[*ids, EOS] for ids in sentences]).astype(np.int32)
    random = np.random.default_rng([3, 2])
    lengths = np.array([len(ids) + 1 for ids in sentences])
    order = np.lexsort((random.random(len(lengths)), lengths))
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    batches = [batches[k] for k in random.permutation(len(batches))]
    windows = SentenceBatches(tokens, size, EOS, 3, 2)
    whole = sentence_batches(of_length(tokens, EOS, 1, 9), size, 3, 2)
    assert len(windows) == len(whole) == len(batches)
    for k, chosen in enumerate(batches):
        assert windows[k].lengths_B.tolist() == lengths[chosen].tolist()
        assert whole[k].lengths_B.tolist() == (lengths[chosen] - 1).tolist()
        for b, n in enumerate(chosen):
            ids, beyond = sentences[n].tolist(), int(lengths[chosen].max() - lengths[n])
            assert windows[k].targets_TB[:, b].tolist() == [*ids, EOS, *[PAD_TARGET] * beyond]
            assert whole[k].tokens_TB[:, b].tolist() == [*ids, *[EOS] * beyond]


IDS, LENGTHS = np.ones((4, 1), np.int64), np.array([4])


@pytest.mark.parametrize(
    "batch",
    [
        Window(IDS, IDS, 4, LENGTHS),
        SentenceBatch(IDS, LENGTHS),
        PairBatch(IDS, IDS, LENGTHS, LENGTHS, np.array([2])),
        TranslationBatch(IDS, LENGTHS, IDS, IDS, LENGTHS),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_of_fewer_sentences_than_processes_is_shared(batch):
    parts = [batch.part(index, 3) for index in range(3)]
    assert sorted(part.count for part in parts) == [0, 0, batch.count]
    assert [part.steps for part in parts] == [batch.steps] * 3


def test_windows_of_random_lengths_are_awd_lstm_s_and_others_in_each_epoch():
    """Normal around 70 (95 %) or 35 (5 %), with deviation 5; at least 5."""
    each = [np.array(window_lengths(700_000, 2, 70, (seed, epoch))) for seed, epoch in ((1, 1), (1, 2), (2, 1))]
    again = np.array(window_lengths(700_000, 2, 70, (1, 1)))
    assert np.array_equal(each[0], again)
    assert not any(np.array_equal(each[0][:50], other[:50]) for other in each[1:])
    lengths = np.concatenate(each)
    short = lengths < 52
    assert short.mean() == pytest.approx(0.05, abs=0.008)
    assert lengths[~short].mean() == pytest.approx(69.5, abs=0.3) and lengths[~short].std() == pytest.approx(5, abs=0.3)
    assert lengths[short].mean() == pytest.approx(34.5, abs=1.2) and all(350_000 <= one.sum() < 350_100 for one in each)
    assert min(window_lengths(10_000, 1, 5, (1, 1))) == 5
