"""What a layer shows of itself: its arguments, its repr, torch.nn's `mode` and lists of weights."""

import inspect
import pydoc

import pytest
import torch

from gatedrnn import (
    CELLS,
    G2LSTM,
    GRU,
    LSTM,
    MGU,
    ONLSTM,
    RNN,
    SLSTM,
    ArgumentError,
    CoupledLSTM,
    Gates,
    LayerNormLSTM,
    PeepholeLSTM,
    Recurrent,
)  # fmt: skip

D, H = 5, 6
FAMILY = (RNN, LSTM, PeepholeLSTM, CoupledLSTM, GRU, ONLSTM, G2LSTM, MGU, LayerNormLSTM, SLSTM)
POSITIONAL = [
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
    "device",
    "dtype",
]
SHARED = [*POSITIONAL, "gates", "weight_dropout", "backend", "proj_size"]
UNKNOWN = {
    "nearest": (
        lambda: ONLSTM(10, 20, chunksize=5),
        "ONLSTM.chunksize",
        "ON-LSTM; got 5",
        "chunk_size",
        "split_points",
    ),
    "shared": (lambda: LSTM(10, 20, num_layer=2), "LSTM.num_layer", "LSTM; got 2", "num_layers", "input_cap"),
    "required": (lambda: LSTM(10, hiden_size=20), "LSTM.hiden_size", "LSTM; got 20", "hidden_size", "input_cap"),
    "own": (lambda: RNN(10, 20, nonlinearty="relu"), "RNN.nonlinearty", "vanilla RNN; got 'relu'", "nonlinearity"),
    "g2": (
        lambda: G2LSTM(10, 20, temprature=1),
        "G2LSTM.temprature",
        "G²-LSTM; got 1",
        "temperature",
        "noise_probability",
        "input_cap",
    ),
    "by name": (
        lambda: Recurrent("lstm", 10, 20, peephole=5),
        "Recurrent.peephole",
        "LSTM; got 5",
        None,
        "cell",
        "input_cap",
    ),
    "of the cell": (lambda: Recurrent("gru", 10, 20, reset=5), "Recurrent.reset", "GRU; got 5", "reset_after", "cell"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_argument_is_answered_by_the_nearest_and_all(case):
    call, owner, got, near, *more = UNKNOWN[case]
    with pytest.raises(ArgumentError) as caught:
        call()
    known = ", ".join(sorted({*SHARED, *more, *([near] if near else [])}))
    asked = f" Did you mean {near!r}?" if near else ""
    assert str(caught.value) == f"{owner}: is not an argument of {got}.{asked} Known: {known}."


def test_every_registered_cell_has_a_layer_of_its_own():
    assert [kind.cell for kind in FAMILY] == [cell for _, cell in CELLS.items()]


@pytest.mark.parametrize("kind", FAMILY)
def test_the_signature_shows_every_argument_with_its_default(kind):
    shown = inspect.signature(kind).parameters
    own = {"temperature", "noise_probability"} if kind is G2LSTM else set()
    without = {"proj_size"} if kind in (GRU, MGU) else set()  # h' stands beside U h' in their equations
    assert shown.keys() == {*SHARED, *kind.cell.options, *own} - without
    assert {name: shown[name].default for name in kind.cell.options} == kind.cell.options
    required = {name for name, parameter in shown.items() if parameter.default is inspect.Parameter.empty}
    assert required == {"input_size", "hidden_size"}
    layer = kind(D, H, **{name: parameter.default for name, parameter in shown.items() if name not in required})
    assert repr(layer) == repr(kind(D, H)) and layer.gates == kind.cell.gates
    positional = [name for name, parameter in shown.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    torch_s = [*inspect.signature(torch.nn.RNNBase.__init__).parameters][2:]  # without self and mode
    special = {LSTM: torch_s, RNN: [*POSITIONAL[:3], "nonlinearity", *POSITIONAL[3:]]}
    assert positional == special.get(kind, POSITIONAL)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())
    told = pydoc.plain(pydoc.render_doc(kind))
    assert all(f"{name}: " in told.partition("Method resolution")[0] for name in shown)


def test_the_signature_of_a_layer_by_name_ends_in_its_cells_options():
    shown = inspect.signature(Recurrent)
    assert [*shown.parameters][:3] == ["cell", "input_size", "hidden_size"]
    assert shown.parameters.keys() == {"cell", *SHARED, "options"} and str(shown).endswith("**options: Any) -> None")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LSTM(3, 4), "LSTM(3, 4)"),
        (lambda: ONLSTM(3, 4, 2, chunk_size=2), "ONLSTM(3, 4, num_layers=2, chunk_size=2)"),
        (lambda: GRU(3, 4, bias=False, reset_after=False), "GRU(3, 4, bias=False, reset_after=False)"),
        (lambda: RNN(3, 4, 1, "relu", dropout=0.5), "RNN(3, 4, dropout=0.5, nonlinearity='relu')"),
        (
            lambda: LSTM(3, 4, weight_dropout=0.5, bidirectional=True),
            "LSTM(3, 4, bidirectional=True, weight_dropout=0.5)",
        ),
        (lambda: LSTM(3, 4, gates=Gates(0.5)), f"LSTM(3, 4, gates={Gates(0.5)})"),
        (lambda: MGU(3, 4), "MGU(3, 4)"),
        (lambda: Recurrent("mgu", 3, 4, 2), "Recurrent('mgu', 3, 4, num_layers=2)"),
        (lambda: Recurrent("onlstm", 3, 4, chunk_size=2), "Recurrent('onlstm', 3, 4, chunk_size=2)"),
    ],
)
def test_repr(make, text):
    assert repr(make()) == text


def test_all_weights_and_flatten_parameters_as_torch():
    theirs, ours = torch.nn.LSTM(D, H, 2, bidirectional=True), LSTM(D, H, 2, bidirectional=True)
    ours.load_state_dict(theirs.state_dict())
    assert ours.flatten_parameters() is None
    assert [len(place) for place in ours.all_weights] == [len(place) for place in theirs.all_weights] == [4] * 4
    for our_place, their_place in zip(ours.all_weights, theirs.all_weights, strict=True):
        assert all(map(torch.equal, our_place, their_place))
    assert ours.all_weights[1][0] is ours.weight_ih_l0_reverse
    assert all(map(torch.equal, ours._flat_weights, theirs._flat_weights)) and len(ours._flat_weights) == 16


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LSTM(D, H), torch.nn.LSTM(D, H)),
        (LSTM(D, H, proj_size=2), torch.nn.LSTM(D, H, proj_size=2)),
        (GRU(D, H), torch.nn.GRU(D, H)),
        (RNN(D, H), torch.nn.RNN(D, H)),
        (RNN(D, H, 1, "relu"), torch.nn.RNN(D, H, 1, "relu")),
        (Recurrent("gru", D, H), torch.nn.GRU(D, H)),
    ],
)
def test_mode_is_torch_s(ours, theirs):
    assert ours.mode == theirs.mode


@pytest.mark.parametrize(
    "layer",
    [
        RNN(D, H, 1, "sigmoid"), GRU(D, H, reset_after=False), G2LSTM(D, H), LSTM(D, H, gates=Gates(0.5)),
        LSTM(D, H, gates=Gates(straight_through=True)), ONLSTM(D, H), CoupledLSTM(D, H), PeepholeLSTM(D, H),
        MGU(D, H), LayerNormLSTM(D, H), SLSTM(D, H),
    ],
)  # fmt: skip
def test_what_torch_has_not_has_no_mode(layer):
    assert not hasattr(layer, "mode")
    with pytest.raises(AttributeError, match=f"'{type(layer).__name__}' object has no attribute 'mode'"):
        layer.mode  # noqa: B018 - the look-up is what is tried
    assert len(layer._flat_weights) == len(list(layer.parameters()))
