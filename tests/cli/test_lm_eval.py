"""Our models in lm-eval: log-probabilities step by step; the registered model where the library is installed."""

import copy
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from terminal import by_steps, copy_of, record, works

from gatedrnn.cli import harness
from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.data import agreement_pairs
from gatedrnn.training.run import load_run


def greedy(run, ids, count):
    """The likeliest ids after `<eos>` and `ids`, one step at a time."""
    found, states = [], None
    with torch.no_grad():
        for token in [1, *ids]:
            output = run.model.eval()(torch.tensor([[token]]), states)
            states = output.states
        for _ in range(count):
            found.append(int(output.logits[0, 0].argmax()))
            output = run.model(torch.tensor([[found[-1]]]), states)
            states = output.states
    return found


@pytest.fixture(scope="module")
def run(work):
    return load_run(work / "run")


def test_likelihoods_are_those_of_single_steps(run):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 7, (70, 2), generator=generator).tolist()
    pairs = [tuple(torch.randint(0, 98, (n,), generator=generator).tolist() for n in pair) for pair in lengths]
    pairs = [(context, continuation or [5]) for context, continuation in pairs]
    pairs += [(context, greedy(run, context, 3)) for context in ([], [4, 5], [6])] + [([7, 8], [])]
    found = harness.likelihoods(run.model, pairs, 1)
    for (context, continuation), (value, likeliest) in zip(pairs, found, strict=True):
        assert value == pytest.approx(sum(by_steps(run, context + continuation)[len(context) :]), abs=1e-4)
        assert likeliest == (continuation == greedy(run, context, len(continuation)))
    assert [likeliest for _, likeliest in found[-4:]] == [True] * 4 and not all(likeliest for _, likeliest in found)
    assert any(not context for context, _ in pairs[:70]) and found[-1] == (0.0, True)


@pytest.mark.parametrize("bias", [math.inf, -math.inf, math.nan])
def test_a_likelihood_that_is_not_finite_is_refused(run, bias):
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        model.decoder.bias[4:] = bias
    with pytest.raises(CheckpointError, match=r"log P: must be finite; got NaN or infinity\. The weights are damaged"):
        harness.likelihoods(model, [([5], [4]), ([], [5])], 1)


def test_without_the_library_there_is_one_line(monkeypatch, capsys):
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ArgumentError, match="harness: needs the library lm-eval; got no such module"):
        harness.register()
    assert harness.main() == 1
    captured = capsys.readouterr()
    line = (
        "gatedrnn: harness: needs the library lm-eval; got no such module. Install it: pip install 'gatedrnn[eval]'.\n"
    )
    assert (captured.out, captured.err) == ("", line)


@pytest.fixture(scope="module")
def model(work):
    """`work`'s run as lm-eval makes it."""
    pytest.importorskip("lm_eval", reason="no lm-eval")
    from lm_eval.api.registry import get_model

    harness.register()
    return get_model("gatedrnn").create_from_arg_string(f"run={work / 'run'}", {"batch_size": 1, "device": "cpu"})


def requests(*arguments):
    return [SimpleNamespace(args=given) for given in arguments]


def test_accuracy_over_pairs_is_that_of_eval_syntax(work, model, tmp_path):
    pairs = [(" ".join(pair.good), " ".join(pair.bad)) for pair in agreement_pairs("simple", 40, 1)]
    lines = [json.dumps({"good": good, "bad": bad}) for good, bad in [*pairs, ("the zebra laughs", "the zebra laugh")]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    found = record("eval-syntax", work / "run", "--pairs", tmp_path / "pairs.jsonl", "--unknown", "unk")
    flat = [("", text) for pair in [*pairs, ("the zebra laughs", "the zebra laugh")] for text in pair]
    values = [value for value, _ in model.loglikelihood(requests(*flat))]
    wins = [good > bad for good, bad in zip(values[::2], values[1::2], strict=True)]
    assert sum(wins) / len(wins) == pytest.approx(found["phenomena"]["all"]["accuracy"])
    assert 0 < sum(wins) < found["phenomena"]["all"]["pairs"] == 41


def test_a_continuation_follows_its_context(run, model):
    asked = [("the pilot", " laughs"), ("the old", " pilot laughs"), ("", "the pilot"), ("  ", "the pilot")]
    found = model.loglikelihood(requests(*asked))
    for (context, continuation), (value, _) in zip(asked, found, strict=True):
        start = len(context.split())
        ids = run.vocabulary.encode((context + continuation).split()) + [1] * (not start)
        assert value == pytest.approx(sum(by_steps(run, ids)[start:]), abs=1e-4)
    assert found[2] == found[3]


def test_a_rolling_text_is_read_with_its_line_ends(work, run, model, tmp_path):
    texts = ["the pilot laughs", "the old pilot\nMary sleeps", "the zebra"]
    found = model.loglikelihood_rolling(requests(*((text,) for text in texts)))
    for text, value in zip(texts, found, strict=True):
        ids = [i for line in text.split("\n") for i in (*run.vocabulary.encode(line.split()), 1)]
        assert value == pytest.approx(sum(by_steps(run, ids)), abs=1e-4)
        (tmp_path / "a.txt").write_text(text + "\n")
        evaluated = record("evaluate", work / "run", "--data", tmp_path / "a.txt")
        assert -value == pytest.approx(evaluated["loss_nats"] * evaluated["tokens"], abs=1e-3)


@pytest.mark.parametrize("empty", ["skip", "eos"])
@pytest.mark.parametrize("level", ["word", "char"])
def test_a_rolling_text_s_lines_are_those_of_evaluate(level, empty, levels, tmp_path):
    text = "\ufeffthe pilot laughs\r\n\r\n \nthe old  zebra"
    folder = copy_of(levels / ("run" if level == "word" else "char"), tmp_path / "run", empty_lines=empty)
    (tmp_path / "a.txt").write_bytes(text.encode())
    evaluated = record("evaluate", folder, "--data", tmp_path / "a.txt")
    (value,) = harness.Scorer(str(folder)).loglikelihood_rolling(requests((text,)))
    assert -value == pytest.approx(evaluated["loss_nats"] * evaluated["tokens"], abs=1e-3)


def test_generation_is_greedy_and_ends_before_a_stop(work, run, model):
    context, longest = "the old pilot", {"max_gen_toks": 12}
    ids = greedy(run, run.vocabulary.encode(context.split()), 12)
    text = run.vocabulary.text([run.vocabulary.words[i] for i in ids])
    assert model.generate_until(requests((context, longest | {"until": []}))) == [text]
    word = text.split()[-1]
    (cut,) = model.generate_until(requests((context, longest | {"until": [word, "no such word"]})))
    assert cut == text[: text.index(word)] and word not in cut
    assert model.generate_until(requests((context, longest | {"until": word}))) == [cut]
    assert model.generate_until(requests((context, longest | {"until": ["", word]}))) == [cut]
    never = {"until": [], "do_sample": False, "temperature": 5.0}
    assert model.generate_until(requests((context, longest | never))) == [text]
    out = works("generate", work / "run", "--prompt", context, "--words", 12, "--temperature", 1e-6)
    assert out.split() == [*context.split(), *text.split()]


def test_arguments_reach_the_model(work, model):
    kind = type(model)
    lower, exact = (kind(str(work / "run"), mapping=mapping) for mapping in ("lower", "exact"))
    asked = requests(("", "THE pilot"), ("", "the pilot"), ("", "THE"))
    shouted, plain, _ = lower.loglikelihood(asked)
    assert shouted == plain != exact.loglikelihood(asked)[0]
    appended = kind(str(work / "run"), append="laughs")
    assert appended.loglikelihood(requests(("", "the pilot"))) == model.loglikelihood(
        requests(("", "the pilot laughs"))
    )
    assert all(math.isfinite(value) for value, _ in exact.loglikelihood(asked))
    with pytest.raises(ArgumentError, match="mapping: must be one of exact, lower, number; got 'upper'"):
        kind(str(work / "run"), mapping="upper")


@pytest.mark.parametrize("level", ["char", "subword"])
def test_pieces_are_those_of_the_whole_text_without_a_space_at_its_end(levels, level):
    scorer = harness.Scorer(str(levels / level))
    vocabulary = scorer.run.vocabulary
    whole = vocabulary.encode(vocabulary.tokens("the old pilot"))
    assert scorer._ids("", "the old pilot") == ([], [*whole, 1])
    for context, continuation in (("the old", " pilot"), ("the old ", "pilot")):
        assert [i for ids in scorer._ids(context, continuation) for i in ids] == whole
    appended = harness.Scorer(str(levels / level), append=".")
    assert appended._ids("", "the old pilot") == ([], [*vocabulary.encode(vocabulary.tokens("the old pilot .")), 1])
