"""Tokens as the server counts them: of a text, against its limits, and of what it writes."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gatedrnn.data import Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.serve import Limits
from gatedrnn.serve.batch import Batch
from gatedrnn.serve.cache import StateCache
from gatedrnn.serve.rows import Prompt, Ticket, Wanted
from gatedrnn.training.run import load_run


@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
def test_an_empty_line_counts_against_the_limits_of_a_server(work, empty_lines):
    pytest.importorskip("fastapi")
    from gatedrnn.serve.http import RefusedError
    from gatedrnn.serve.limits import Limits
    from gatedrnn.serve.readings import parsing, reading
    from gatedrnn.serve.schema import ParseBody, SurprisalBody

    run = load_run(work / "run")
    run = replace(run, config=replace(run.config, data=replace(run.config.data, empty_lines=empty_lines)))
    text, limits = "the pilot\n" + "\n" * 20, Limits(prompt_tokens=20)
    assert len(list(parsing(run, ParseBody(text=text), Limits())())) == 21
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 22 or more"):
        parsing(run, ParseBody(text=text), limits)
    if empty_lines == "skip":
        assert len(list(reading(run, SurprisalBody(text=text), limits)())) == 1
        return
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 21 or more"):
        reading(run, SurprisalBody(text=text), limits)


@pytest.mark.parametrize(("wanted", "broken", "tokens"), [(0, False, 0), (3, False, 3), (3, True, 0)])
def test_tokens_are_counted_where_there_are_any(wanted, broken, tokens):
    torch.manual_seed(1)
    words = ["<unk>", "<eos>", "a", "b"]
    model = LanguageModel(LanguageModelConfig(len(words), cell="lstm", embedding_size=8, hidden_sizes=(8,))).eval()
    if broken:
        model.decoder.weight.data.fill_(float("nan"))
    run = SimpleNamespace(model=model, vocabulary=Vocabulary(words))
    batch, found = Batch("x", run, StateCache(0), Limits(rows=4)), Counter[str]()
    batch.add(Prompt(Ticket(print), Wanted(new_tokens=wanted, past_eos=True), ["<eos>"], [1], 0, 0))
    while batch.busy:
        found.update(type(event).__name__ for _, event in batch.advance())
    assert batch.tokens == tokens and set(found) == {"CheckpointError" if broken else "Event"}
