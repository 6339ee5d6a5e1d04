"""Folders, columns, suites and batches of data at their edges."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import find_splits, read_suite
from gatedrnn.data.batching import PAD_TARGET, SentenceBatches
from gatedrnn.data.config import ParallelDataConfig
from gatedrnn.data.labelled import find_pairs
from gatedrnn.data.parallel import read_parallel
from gatedrnn.data.sentences import sentence_batches

EOS = 1
READ = {
    "corpus": (find_splits, "train.txt and valid.txt"),
    "labelled pairs": (find_pairs, "train.tsv and valid.tsv"),
    "parallel text": (
        lambda folder: read_parallel(folder, ParallelDataConfig("x", "de", "en")),
        "train.de and train.en",
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_a_folder_that_holds_nothing_or_cannot_be_read_is_one_line(kind, tmp_path, monkeypatch):
    read, held = READ[kind]
    with pytest.raises(DataError, match=f"nowhere: must be a folder with {held}; got no such folder. Check --data"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must hold train.*; got an empty folder"):
        read(tmp_path)
    for name in "hgfedcbai":
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"; got a, b, c, d, e, f, g, h\. "):
        read(tmp_path)

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path.name}: must be a readable folder; got Permission denied"):
        read(tmp_path)
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(DataError, match=f"must be a folder with {held}; got Permission denied"):
        read(tmp_path)


def test_a_column_of_a_language_stands_once():
    with pytest.raises(
        ArgumentError,
        match=r"data\.columns: must name data\.source and data\.target, each once; got de, en, de\. Write",
    ):
        ParallelDataConfig("x", "de", "en", ("de", "en", "de"))
    assert ParallelDataConfig("x", "de", "en", ("other", "de", "en", "other")).columns


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"meta": 5}, 'meta must be a JSON object; got 5. Write {"name": "my suite", "metric": "sum"}.'),
        ({"region_meta": [1]}, 'region_meta must be a JSON object; got [1]. Write {"1": "subject", "2": "verb"}.'),
        ({"region_meta": {"a": "b"}}, "region_meta: must be a whole number; got 'a'. Write a number such as 1."),
        ({"predictions": [{"type": "code"}]}, 'Write {"type": "formula", "formula": "(2;%match%) < (2;%mismatch%)"}.'),
        ({"items": []}, 'must have a list of items, with at least one; got none. Write "items": [...].'),
    ],
)
def test_what_is_wrong_in_a_suite_is_told_with_what_to_write(change, told, tmp_path):
    regions = [{"region_number": 1, "content": "a"}]
    suite = {
        "items": [{"item_number": 1, "conditions": [{"condition_name": "a", "regions": regions}]}],
        "predictions": [{"type": "formula", "formula": "(1;%a%) > 0"}],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(suite))
    assert read_suite(path).name == "a"
    path.write_text(json.dumps(suite | change))
    with pytest.raises(DataError) as caught:
        read_suite(path)
    assert told in str(caught.value)


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
    windows, whole = SentenceBatches(tokens, size, EOS, 3, 2), sentence_batches(tokens, size, EOS, 3, 2)
    assert len(windows) == len(whole) == len(batches)
    for k, chosen in enumerate(batches):
        assert windows[k].lengths_B.tolist() == lengths[chosen].tolist()
        assert whole[k].lengths_B.tolist() == (lengths[chosen] - 1).tolist()
        for b, n in enumerate(chosen):
            ids, beyond = sentences[n].tolist(), int(lengths[chosen].max() - lengths[n])
            assert windows[k].targets_TB[:, b].tolist() == [*ids, EOS, *[PAD_TARGET] * beyond]
            assert whole[k].tokens_TB[:, b].tolist() == [*ids, *[EOS] * beyond]
