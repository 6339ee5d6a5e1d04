"""Any call of a layer or a language model gives the reference's numbers or one of our errors, whatever happened before it."""

import argparse

import pytest

pytest.importorskip("numba")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402 - after the skip
from hypothesis import strategies as st  # noqa: E402 - likewise

from .calls import Call, Case, Change, ModelCase, Score, draw, numbered, read  # noqa: E402 - likewise
from .fuzz_calls import Worker, examine, hunt, shrink  # noqa: E402 - likewise

LARGE = {"width": 64, "hidden": 128}
WIDE = {"width": 600, "hidden": 128}
RELU = {"cell": "rnn", "options": (("nonlinearity", "relu"),)}
AGAIN = Call()
CASES = {
    "int32 targets": ModelCase(
        1, (Score(targets="int32"), Score(targets="int32", mode="grad", steps=40)), vocabulary=1001
    ),
    "uint8 targets": ModelCase(1, (Score(targets="uint8"),)),
    "a target out of range, compiled": ModelCase(1, (Score(wrap="compile", ids="high"),)),
    "a target far out of range, compiled": ModelCase(1, (Score(wrap="compile", ids="far"),)),
    "an output sent to another process": Case(
        1, (Call(steps=70, batch=40, keep="queue"), Call(steps=70, batch=40)), **LARGE
    ),
    "an output in shared memory": Case(1, (Call(steps=70, batch=40, keep="share"), Call(steps=70, batch=40)), **LARGE),
    "a smaller batch after a large one": Case(
        1, (Call(steps=70, batch=60, keep="drop"), Call(steps=70, batch=33)), **LARGE
    ),
    "a pruned weight": Case(1, (AGAIN, AGAIN, Change("prune", 1), AGAIN, AGAIN), bias=False),
    "everything pruned": Case(1, (AGAIN, AGAIN, Change("prune_all"), AGAIN, AGAIN)),
    "spectral norm": Case(1, (AGAIN, AGAIN, Change("old_spectral_norm", 1), AGAIN, AGAIN), bias=False),
    "a weight of two GRUs": Case(1, (Change("tie_other"), Call(batch=9), Call(batch=9, other=True)), cell="gru"),
    "a weight of two cells": Case(1, (Change("tie_other"), Call(batch=9), Call(batch=9, other=True)), cell="coupled"),
    "a column changed through .data": Case(1, (AGAIN, AGAIN, Change("data_column"), AGAIN), **WIDE),
    "an element changed through .data": Case(1, (AGAIN, AGAIN, Change("data_element", 4), AGAIN), **WIDE),
    "a column changed by a fused step": Case(1, (AGAIN, AGAIN, Change("adam_fused_column", 1), AGAIN), **WIDE),
    "changed while it infers": Case(1, (AGAIN, Call(wrap="threads_change")), width=64, hidden=64),
    "forked while it infers": Case(1, (AGAIN, Call(wrap="fork_busy")), width=64, hidden=64),
    "a weight of a tensor subclass": Case(1, (Change("subclass"), AGAIN, Call(mode="grad"))),
    "lengths beyond T, compiled": Case(1, (Call(wrap="compile", lengths="list", wrong="lengths_long"),)),
    "a length of 0, compiled": Case(1, (Call(wrap="compile", lengths="list", wrong="lengths_zero"),)),
    "lengths beyond T, exported": Case(1, (Call(wrap="export", lengths="int64", wrong="lengths_long"),)),
    "a logit of NaN": ModelCase(1, (Score(values="nan_decoder", steps=7),), vocabulary=100),
    "noise on another device": Case(1, (Call(noise="drawn", wrong="noise_meta"),)),
    "torch.func.grad of a model": ModelCase(1, (Score(wrap="func_grad", mode="grad"),)),
    "NaN in a weight": Case(1, (AGAIN, Change("nan_weight"), AGAIN, AGAIN)),
    "-inf into a ReLU": Case(1, (Call(values="-inf"), Call(values="inf")), **RELU),
    "traced": Case(1, (Call(wrap="trace"), Call(wrap="trace", steps=5), Call(wrap="trace", steps=17))),
    "G2LSTM without gates": Case(1, (AGAIN,), cell="g2lstm", by_class=True),
    "G2LSTM with gates": Case(1, (AGAIN,), cell="g2lstm", by_class=True, gates=(("temperature", 0.5),)),
    "compiled whole": Case(
        1, (Call(wrap="compile_full", mode="grad", training=True, lengths="int64", gates="all"),), cell="onlstm"
    ),
    "gates under weights_only": Case(1, (Change("weights_only"),)),
    "a negated view as input": Case(1, (Call(strides="neg"), Call(strides="neg", mode="grad"), Call(strides="imag"))),
    "a negated view as state": Case(1, (Call(states=True, state_strides="neg"),)),
    "a negated view as weight": Case(1, (Change("neg"), AGAIN, Call(mode="grad"))),
    "a sparse state": Case(1, (Call(states=True, wrong="hx_sparse"),)),
    "one bias alone": Case(1, (Change("delete_bias"), AGAIN)),
    "float64 under autocast": Case(1, (Call(autocast="bfloat16", states=True, mode="grad"),), dtype="float64"),
    "float64 under autocast, by the reference": Case(
        1, (Call(autocast="bfloat16"),), dtype="float64", backend="reference"
    ),
    "a model in float64 under autocast": ModelCase(1, (Score(autocast="bfloat16", mode="grad"),), dtype="float64"),
    "an input of a tensor subclass": Case(1, (Call(strides="two_tensor", mode="grad"),)),
    "a packed input of a tensor subclass": Case(1, (Call(strides="two_tensor", mode="grad", layout="packed_sorted"),)),
    "torch.func.grad of pruned weights": Case(1, (Change("prune_all"), Call(wrap="func_grad", mode="grad"))),
    "a parametrisation that PyTorch has not": Case(1, (Change("orthogonal"), AGAIN), dtype="float16"),
    "an infinite master gate of one chunk": Case(1, (Change("inf_weight", 2), Call()), cell="onlstm", hidden=1),
    "a chaotic recurrence": Case(
        1, (Change("functional_edit", 1), Call(steps=70)), cell="rnn", hidden=257, dtype="float64"
    ),
    "a backend that cannot be compiled whole": Case(1, (Call(wrap="compile_full"),), backend="torch"),
    "re-entrant checkpointing": Case(1, (Call(wrap="reentrant", mode="grad", states=True),)),
    "only ignored targets": ModelCase(1, (Score(mode="grad", ids="all_ignored"),)),
    "a class of -inf, ignored targets": ModelCase(1, (Score(steps=40, batch=1, ids="ignored", values="-inf_bias"),)),
}


@pytest.fixture(scope="module")
def worker():
    made = Worker()
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
def test_what_was_wrong_once(worker, name):
    found = examine(worker, CASES[name])
    assert found is None, f"{found}\n{CASES[name]!r}"


@st.composite
def cases(draws):
    return draw(lambda values: draws(st.sampled_from(values)), draws(st.integers(0, 1 << 30)), slow=0)


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(case=cases())
def test_every_call_is_right_or_refused(worker, case):
    found = examine(worker, case)
    if found is not None:
        small = shrink(worker, case, found[0], 30)
        raise AssertionError(f"{worker.run(small) or found}\n{small!r}")


def test_fuzz_for_as_long_as_asked(worker, request):
    minutes = request.config.getoption("--minutes", 0.0)
    if not minutes:
        pytest.skip("for as long as --minutes says")
    seed = request.config.getoption("--fuzz-seed", 1)
    options = {"calls": 0, "minutes": minutes, "seed": seed, "slow": 60, "no_shrink": False, "only": ""}
    assert not hunt(worker, argparse.Namespace(**options))


def test_a_case_is_read_as_it_is_printed():
    for number in range(40):
        case = numbered(number)
        assert read(repr(case)) == case
