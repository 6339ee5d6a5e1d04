"""Errors of the layers say what to do; and the kinds of `lengths` and `return_gates` that are taken."""

import re

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from gatedrnn import GRU, LSTM, ONLSTM, RNN, ArgumentError, CoupledLSTM, PeepholeLSTM, Recurrent

T, B, D, H = 4, 3, 5, 6
X = torch.randn(T, B, D, generator=torch.Generator().manual_seed(0))


def h(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def pair(*shape, dtype=torch.float32):
    return h(*shape, dtype=dtype), h(*shape, dtype=dtype)


def packed():
    return pack_padded_sequence(X, torch.tensor([4, 2, 1]))


def lstm(**kwargs):
    return LSTM(D, H, **kwargs)


def nested(**kwargs):
    return torch.nested.nested_tensor([X[:, 0], X[:2, 1]], **kwargs)


CONSTRUCTION = {
    "size 0": (lambda: LSTM(0, H), "LSTM.input_size: must be a positive integer; got 0."),
    "size -1": (lambda: GRU(D, -1), "GRU.hidden_size: must be a positive integer; got -1."),
    "size bool": (lambda: LSTM(D, True), "LSTM.hidden_size: must be a positive integer; got True."),
    "size float": (lambda: RNN(D, 6.0), "RNN.hidden_size: must be a positive integer; got 6.0."),
    "size nan": (lambda: ONLSTM(float("nan"), H), "ONLSTM.input_size: must be a positive integer; got nan."),
    "size text": (lambda: LSTM("5", H), "LSTM.input_size: must be a positive integer; got '5'."),
    "layers 0": (lambda: lstm(num_layers=0), "LSTM.num_layers: must be a positive integer; got 0."),
    "layers bool": (lambda: lstm(num_layers=True), "LSTM.num_layers: must be a positive integer; got True."),
    "flag text": (lambda: lstm(batch_first="False"), "LSTM.batch_first: must be True or False; got 'False'."),
    "flag number": (lambda: lstm(bias=2), "LSTM.bias: must be True or False; got 2."),
    "flag None": (lambda: lstm(bidirectional=None), "LSTM.bidirectional: must be True or False; got None."),
    "dropout": (lambda: lstm(dropout=1.5), "LSTM.dropout: must be a probability between 0 and 1; got 1.5."),
    "dropout nan": (
        lambda: lstm(dropout=float("nan")),
        "LSTM.dropout: must be a probability between 0 and 1; got nan.",
    ),
    "weight dropout": (
        lambda: CoupledLSTM(D, H, weight_dropout=-0.1),
        "CoupledLSTM.weight_dropout: must be a probability between 0 and 1; got -0.1.",
    ),
    "chunk": (
        lambda: ONLSTM(3, 13, chunk_size=5),
        "ONLSTM.chunk_size: must divide hidden_size; got hidden_size=13, chunk_size=5. Try 1 or 13.",
    ),
    "chunk near": (
        lambda: ONLSTM(3, 12, chunk_size=5),
        "ONLSTM.chunk_size: must divide hidden_size; got hidden_size=12, chunk_size=5. Try 4 or 6.",
    ),
    "chunk 0": (
        lambda: ONLSTM(3, 12, chunk_size=0),
        "ONLSTM.chunk_size: must be a positive integer; got 0.",
    ),
    "chunk above": (
        lambda: ONLSTM(3, 4, chunk_size=8),
        "ONLSTM.chunk_size: must divide hidden_size; got hidden_size=4, chunk_size=8. Try 2 or 4.",
    ),
    "split points": (
        lambda: ONLSTM(3, 4, split_points="any"),
        "ONLSTM.split_points: must be one of paper, free; got 'any'.",
    ),
    "peephole": (
        lambda: PeepholeLSTM(3, 4, peephole="both"),
        "PeepholeLSTM.peephole: must be one of diagonal, full; got 'both'.",
    ),
    "nonlinearity": (
        lambda: RNN(3, 4, 1, "gelu"),
        "RNN.nonlinearity: must be one of tanh, relu, sigmoid; got 'gelu'.",
    ),
    "backend": (lambda: lstm(backend="cuda"), "LSTM.backend: must be one of auto, "),
    "backend value": (lambda: lstm(backend="cuda"), "; got 'cuda'."),
    "gates": (
        lambda: lstm(gates=0.9),
        "LSTM.gates: must be a Gates; got 0.9. Write gates=Gates(temperature=0.9).",
    ),
    "cell number": (
        lambda: Recurrent(3, 3, 4),
        "Recurrent.cell: must be a cell's name or a Cell; got 3. Known names: rnn, ",
    ),
    "cell class": (lambda: Recurrent(LSTM, 3, 4), "Recurrent.cell: must be a cell's name or a Cell; got <class "),
    "dtype": (
        lambda: lstm(dtype=torch.float8_e4m3fn),
        "LSTM.dtype: must be a floating-point type of 16 bits or more; got torch.float8_e4m3fn. Give torch.float32, ",
    ),
    "dtype int": (
        lambda: lstm(dtype=torch.int64),
        "LSTM.dtype: must be a floating-point type of 16 bits or more; got ",
    ),
    "dtype text": (
        lambda: lstm(dtype="float32"),
        "of 16 bits or more; got 'float32'. Give torch.float32, or leave it ",
    ),
    "cell": (lambda: Recurrent("lstmm", 3, 4), "cell: unknown name; got 'lstmm'. Did you mean 'lstm'?"),
    "option": (
        lambda: Recurrent("onlstm", 3, 4, chunksize=2),
        "Recurrent.chunksize: is not an argument of ON-LSTM; got 2. Did you mean 'chunk_size'?",
    ),
}
CALLS = {
    "hidden size of h": (
        lambda: GRU(D, H)(X, h(1, B, 7)),
        "GRU.hx: h_0 must have shape [1, 3, 6]; got [1, 3, 7].",
    ),
    "batch of c": (
        lambda: lstm()(X, (h(1, B, H), h(1, 2, H))),
        "LSTM.hx: c_0 must have shape [1, 3, 6]; got [1, 2, 6].",
    ),
    "directions": (
        lambda: lstm(num_layers=2, bidirectional=True)(X, pair(2, B, H)),
        "LSTM.hx: h_0 must have shape [4, 3, 6]; got [2, 3, 6].",
    ),
    "unbatched state": (
        lambda: lstm()(X[:, 0], pair(1, 1, H)),
        "LSTM.hx: h_0 must have shape [1, 6]; got [1, 1, 6].",
    ),
    "type of hx": (
        lambda: lstm()(X, pair(1, B, H, dtype=torch.float64)),
        "LSTM.hx: h_0 must be torch.float32; got torch.float64.",
    ),
    "one state of two": (lambda: lstm()(X, h(1, B, H)), "LSTM.hx: must be a tuple (h_0, c_0); got 1 state(s)."),
    "two states of one": (lambda: GRU(D, H)(X, pair(1, B, H)), "GRU.hx: must be a tensor h_0; got 2 state(s)."),
    "three states": (
        lambda: lstm()(X, (*pair(1, B, H), h(1, B, H))),
        "LSTM.hx: must be a tuple (h_0, c_0); got 3 state(s).",
    ),
    "no tensor": (lambda: lstm()(X, (h(1, B, H), None)), "LSTM.hx: must be a tuple (h_0, c_0); got NoneType."),
    "integer input": (
        lambda: lstm()(torch.ones(T, B, D, dtype=torch.int64)),
        "LSTM.input: must have the weights' type torch.float32; got torch.int64. Convert ",
    ),
    "double input": (
        lambda: lstm()(X.double()),
        "LSTM.input: must have the weights' type torch.float32; got torch.float64. Convert one: input.to(",
    ),
    "width": (
        lambda: lstm()(X[..., :4]),
        "LSTM.input: last dimension must be input_size=5; got shape [4, 3, 4].",
    ),
    "1-D": (lambda: lstm()(X[0, 0]), "LSTM.input: must be 2-D [T, D] or 3-D; got shape [5]."),
    "4-D": (lambda: lstm()(X[None]), "LSTM.input: must be 2-D [T, D] or 3-D; got shape [1, 4, 3, 5]."),
    "no step": (lambda: lstm()(X[:0]), "LSTM.input: must have at least one time step; got shape [0, 3, 5]."),
    "no step batch first": (
        lambda: lstm(batch_first=True)(X[:, :0]),
        "LSTM.input: must have at least one time step; got shape [4, 0, 5].",
    ),
    "no step unbatched": (
        lambda: lstm()(X[:0, 0]),
        "LSTM.input: must have at least one time step; got shape [0, 5].",
    ),
    "list": (lambda: lstm()([[1.0]]), "LSTM.input: must be a tensor or a PackedSequence; got list."),
    "lengths 0": (lambda: lstm()(X, lengths=[4, 0, 1]), "LSTM.lengths: must lie in 1…4; got 0…4."),
    "lengths above": (lambda: lstm()(X, lengths=[4, 5, 1]), "LSTM.lengths: must lie in 1…4; got 1…5."),
    "lengths count": (
        lambda: lstm()(X, lengths=[4, 2]),
        "LSTM.lengths: must be 3 integers; got torch.int64 of shape [2].",
    ),
    "lengths float": (
        lambda: lstm()(X, lengths=torch.ones(3)),
        "LSTM.lengths: must be 3 integers; got torch.float32 of shape [3].",
    ),
    "tokens packed": (
        lambda: lstm()(PackedSequence(torch.randn(5, D), torch.tensor([2, 2]))),
        "LSTM.input: must hold as many tokens as its batch_sizes say; got 5 tokens, and batch_sizes of 4. Pack it again.",
    ),
    "a hole in the packed": (
        lambda: lstm()(PackedSequence(torch.randn(5, D), torch.tensor([3, 0, 2]))),
        "LSTM.input: must have batch_sizes that never rise; got [3, 0, 2]. Pack it again.",
    ),
    "lengths packed": (
        lambda: lstm()(packed(), lengths=[4, 2, 1]),
        "LSTM.lengths: must be None for a PackedSequence; got lengths.",
    ),
    "lengths unbatched": (
        lambda: lstm()(X[:, 0], lengths=[4]),
        "LSTM.lengths: must be None for an unbatched 2-D input; got lengths.",
    ),
    "noise places": (
        lambda: lstm(num_layers=2)(X, noise=[None]),
        "LSTM.noise: must have 2 entries; got 1.",
    ),
    "noise shape": (lambda: lstm()(X, noise=[torch.zeros(T, B, 5)]), "LSTM.noise: "),
    "noise number": (lambda: lstm()(X, noise=3), "LSTM.noise: must be a list of a tensor or None for each layer and "),
    "noise numbers": (lambda: lstm()(X, noise=[1]), "LSTM.noise: must hold tensors or None; got int. Draw it with "),
    "noise array": (lambda: lstm()(X, noise=[np.zeros((T, B, 4 * H))]), "must hold tensors or None; got ndarray."),
    "nested noise": (lambda: lstm()(X, noise=[nested()]), "LSTM.noise: must be a strided tensor; got a nested tensor."),
    "nested": (lambda: lstm()(nested()), "LSTM.input: must be a strided tensor; got a nested tensor. Pad it with "),
    "jagged": (
        lambda: lstm()(nested(layout=torch.jagged)),
        "LSTM.input: must be a strided tensor; got a nested tensor. Pad it with ",
    ),
    "nested rows of three dimensions": (
        lambda: lstm()(torch.nested.nested_tensor([X, X])),
        "LSTM.input: must be a strided tensor; got a nested tensor. Pad it with ",
    ),
    "nested state": (lambda: lstm()(X, (nested(),) * 2), "LSTM.hx: must be a strided tensor; got a nested tensor."),
    "gates 1": (
        lambda: lstm()(X, return_gates=1),
        "LSTM.return_gates: must be True, False or a tuple of gate names; got 1. Write ('input_gate',), or True for all",
    ),
    "gates text": (
        lambda: lstm()(X, return_gates="input_gate"),
        "LSTM.return_gates: must be True, False or a tuple of gate names; got 'input_gate'.",
    ),
    "gates of none": (
        lambda: lstm()(X, return_gates=[]),
        "LSTM.return_gates: must be True, False or a tuple of gate names; got []. Write ('input_gate',), or True for all",
    ),
    "gates tensor": (
        lambda: lstm()(X, return_gates=torch.tensor([1, 2])),
        "LSTM.return_gates: must be True, False or a tuple of gate names; got tensor([1, 2]).",
    ),
    "gates unhashable": (
        lambda: lstm()(X, return_gates=[["input_gate"]]),
        "LSTM.return_gates: must be True, False or a tuple of gate names; got [['input_gate']].",
    ),
    "lengths complex": (
        lambda: lstm()(X, lengths=torch.ones(3, dtype=torch.complex64)),
        "LSTM.lengths: must be 3 integers; got torch.complex64 of shape [3]. Give one length per row.",
    ),
    "lengths sparse": (
        lambda: lstm()(X, lengths=torch.tensor([1, 2, 3]).to_sparse()),
        "LSTM.lengths: must be a strided tensor; got torch.sparse_coo.",
    ),
    "lengths unsigned above": (
        lambda: lstm()(X, lengths=torch.tensor([1, 2, 2**63 + 1], dtype=torch.uint64)),
        "LSTM.lengths: must lie in 1…4; got 1…9223372036854775809.",
    ),
}
NO_LENGTHS = {
    "text": "abc",
    "text in a list": [1, 2, "a"],
    "None in a list": [1, None, 2],
    "lists": [[1, 2], [2], [3]],
    "set": {1, 2, 3},
    "dict": {0: 1, 1: 2, 2: 3},
    "generator": (length for length in (1, 2, 3)),
    "too large": [2**70, 1, 1],
    "array of objects": np.array([[1, None, 2]] * 3, dtype=object),
}
CALLS |= {
    f"lengths {name}": (lambda lengths=lengths: lstm()(X, lengths=lengths), "LSTM.lengths: must be 3 integers in 1…4; ")
    for name, lengths in NO_LENGTHS.items()
}


@pytest.mark.parametrize("case", [*CONSTRUCTION, *CALLS])
def test_error_says_who_what_got_and_what_to_do(case):
    call, message = (CONSTRUCTION | CALLS)[case]
    with pytest.raises(ArgumentError) as caught:
        call()
    assert message in str(caught.value)
    form = r"\w+(\.\w+)?: [^;]+; got .+\. .+[.?]"  # <owner.field>: <rule>; got <values>. <what to do>.
    assert re.fullmatch(form, str(caught.value)), str(caught.value)


UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
LENGTHS = {
    "tuple": (4, 2, 1),
    "array": np.array([4, 2, 1]),
    "reversed array": np.array([1, 2, 4])[::-1],
    "array of int32": np.array([4, 2, 1], dtype=np.int32),
} | {str(dtype): torch.tensor([4, 2, 1], dtype=dtype) for dtype in (*UNSIGNED, torch.int8, torch.int32)}


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_of_every_integer_type(kind):
    layer = LSTM(D, H)
    output, (_, c_n) = layer(X, lengths=LENGTHS[kind])
    expected, (_, expected_c) = layer(X, lengths=[4, 2, 1])
    assert torch.equal(output, expected) and torch.equal(c_n, expected_c)


@pytest.mark.parametrize("lengths", [[], np.array([]), torch.zeros(0, dtype=torch.int64)])
def test_an_empty_batch_has_no_lengths(lengths):
    assert lstm()(X[:, :0], lengths=lengths)[0].shape == (T, 0, H)


def test_flags_may_be_numbers_and_numpys():
    layer = LSTM(D, H, bidirectional=np.int64(1), batch_first=np.True_, bias=0)
    assert (layer.bidirectional, layer.batch_first, layer.bias) == (True, True, False)


def test_return_gates_may_be_none():
    layer = LSTM(D, H)
    assert len(layer(X, return_gates=None)) == 2 and torch.equal(layer(X, return_gates=None)[0], layer(X)[0])


def test_the_reset_of_a_gru_is_true_or_false():
    with pytest.raises(ArgumentError, match=r"^GRU\.reset_after: must be True or False; got 'False'\."):
        GRU(3, 4, reset_after="False")  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", [(), (2, 3)], ids=["1-D", "3-D"])
def test_packed_data_of_another_rank_is_refused(extra):
    data = torch.randn(5, 3, *extra)
    text = rf"^LSTM\.input: must hold data of 2 dimensions \[tokens, D\]; got shape \[15{', 2, 3' if extra else ''}\]\."
    with pytest.raises(ArgumentError, match=text):
        LSTM(3, 4)(pack_padded_sequence(data, [5, 5, 5]))
