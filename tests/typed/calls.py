"""Calls that a type checker accepts, and wrong ones that it names: pyright reads them in `make check`; nothing runs them."""
# pyright: reportUnnecessaryTypeIgnoreComment=true

import torch

from gatedrnn import G2LSTM, GRU, LSTM, ONLSTM, Recurrent

ONLSTM(8, 16, chunk_size=4, weight_dropout=0.1)
LSTM(8, 16, 1, True, False, 0.0, False, 4, "cpu", torch.float64)
Recurrent("onlstm", 8, 16, chunk_size=4)

ONLSTM(8, 16, chunk_size="x")  # pyright: ignore[reportArgumentType]
ONLSTM(8, 16, chunksize=4)  # pyright: ignore[reportCallIssue]
GRU(8, 16, reset_after="x")  # pyright: ignore[reportArgumentType]
LSTM(8, 16, input_cap="x")  # pyright: ignore[reportArgumentType]
G2LSTM(8, 16, temprature=0.5)  # pyright: ignore[reportCallIssue]
LSTM(8)  # pyright: ignore[reportCallIssue]
