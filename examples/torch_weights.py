"""The weights of a trained torch.nn.LSTM in ours: same outputs, and what its gates did."""

import torch

from gatedrnn import LSTM

theirs = torch.nn.LSTM(16, 32, bidirectional=True)
ours = LSTM(16, 32, bidirectional=True)
ours.load_state_dict(theirs.state_dict())

x = torch.randn(11, 4, 16)
expected, _ = theirs(x)
output, _, gates = ours(x, return_gates=True)
print("largest difference:", float((output - expected).abs().max().detach()))
print("mean forget gate, forward and backward:", [round(float(g["forget_gate"].mean().detach()), 3) for g in gates])
