"""An ON-LSTM where a torch.nn.LSTM was: same arguments, and the gates besides."""

import torch

from gatedrnn import ONLSTM, syntactic_distance

layer = ONLSTM(32, 64, num_layers=2, batch_first=True, chunk_size=8, weight_dropout=0.3)
words = torch.randn(3, 7, 32)
output, (h_n, c_n), gates = layer(words, lengths=[7, 5, 2], return_gates=True)

print("output", list(output.shape), "h_n", list(h_n.shape), "c_n", list(c_n.shape))
for name, gate in gates[1].items():
    print(f"layer 2 {name:15s} {list(gate.shape)}")
print(
    "distances of the second sentence:",
    [round(d, 3) for d in syntactic_distance(gates[1]["master_forget"])[1, :5].tolist()],
)
