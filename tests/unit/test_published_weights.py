"""Published weights of other shapes, and a rate that is none, are refused."""

import pytest
import torch

from gatedrnn import G2LSTM, ONLSTM
from gatedrnn.core.errors import ArgumentError, CheckpointError

THEIRS = {
    "cells.0.ih.0.weight": torch.zeros(20, 3),
    "cells.0.ih.0.bias": torch.zeros(20),
    "cells.0.hh.weight": torch.zeros(20, 4),
    "cells.0.hh.bias": torch.zeros(20),
}
OF_G2 = {"cell_0.weight_ih": torch.zeros(3, 16), "cell_0.weight_hh": torch.zeros(4, 16), "cell_0.bias": torch.zeros(16)}


@pytest.mark.parametrize("key", THEIRS)
def test_published_weights_of_another_rank_are_refused(key):
    wrong = THEIRS[key][0] if THEIRS[key].dim() > 1 else THEIRS[key][None]
    assert ONLSTM.load_ordered_neurons(THEIRS, 0).hidden_size == 4
    with pytest.raises(CheckpointError, match=rf"^ONLSTM\.load_ordered_neurons: {key} must be a tensor of .*; got \["):
        ONLSTM.load_ordered_neurons({**THEIRS, key: wrong}, 0)


@pytest.mark.parametrize("key", OF_G2)
def test_published_weights_of_g2_of_another_rank_are_refused(key):
    wrong = OF_G2[key][0] if OF_G2[key].dim() > 1 else OF_G2[key][None]
    assert G2LSTM.load_g2(OF_G2).hidden_size == 4
    with pytest.raises(CheckpointError, match=rf"^G2LSTM\.load_g2: {key} must be a tensor of .*; got \["):
        G2LSTM.load_g2({**OF_G2, key: wrong})


def test_a_rate_of_dropconnect_is_a_probability():
    with pytest.raises(ArgumentError, match=r"dropconnect: must be a probability between 0 and 1; got 1\.5"):
        ONLSTM.load_ordered_neurons(THEIRS, 0, dropconnect=1.5)
