"""Completions beside one another: each is the one alone, for every cell, and with states that were kept."""

from types import SimpleNamespace

import pytest
import torch

from gatedrnn.cells import CELLS
from gatedrnn.data import Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.serve import Limits
from gatedrnn.serve.batch import Batch
from gatedrnn.serve.cache import StateCache
from gatedrnn.serve.rows import Prompt, Ticket, Wanted

WORDS = ["<unk>", "<eos>", *(f"w{k}" for k in range(90))]
LENGTHS = (0, 1, 5, 40, 64, 65, 130, 7, 7)


def computed(model, prompts, rows, cache_bytes):
    """Texts and log-probabilities of a completion of each prompt; with one row, each is done before the next one comes."""
    run = SimpleNamespace(model=model, vocabulary=Vocabulary(WORDS))
    batch, found = Batch("x", run, StateCache(cache_bytes), Limits(rows=rows)), [[] for _ in prompts]

    def work():
        while batch.busy:
            for _, event in batch.advance():
                found[event.index] += event.pieces

    for k, ids in enumerate(prompts):
        how = {"new_tokens": 12 + k % 5, "logprobs": 1, "past_eos": True, "echo": k % 3 == 0}
        wanted = Wanted(0.8 * (k % 2), seed=k, **how)
        batch.add(Prompt(Ticket(print), wanted, [WORDS[i] for i in ids], ids, k, len(ids) - 1))
        if rows == 1:
            work()
    work()
    texts = ["".join(piece.text for piece in pieces) for pieces in found]
    return texts, [[piece.scored.logprob for piece in pieces] for pieces in found]


@pytest.mark.parametrize("cell", CELLS)
def test_each_is_the_one_alone(cell):
    torch.manual_seed(1)
    options = {"chunk_size": 4} if cell == "onlstm" else {}
    config = LanguageModelConfig(len(WORDS), cell=cell, embedding_size=24, hidden_sizes=(36, 24), options=options)
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        parameter.data *= 3
    prompts = [[1, *torch.randint(2, len(WORDS), (length,)).tolist()] for length in LENGTHS * 3]
    prompts += [[*prompt, 5, 6] for prompt in prompts[:9]]
    alone, logprobs = computed(model, prompts, 1, 0)
    assert len(set(alone)) > len(prompts) // 2  # greedy ones may end in one word
    for rows, cache_bytes in ((32, 0), (32, 1 << 24), (64, 50_000)):
        texts, found = computed(model, prompts, rows, cache_bytes)
        assert texts == alone
        assert all(one == pytest.approx(two, abs=1e-5) for one, two in zip(found, logprobs, strict=True))
