"""A language model in a quarter of its bytes: compress it, save it, load it, and let it go on as it is stored.

python examples/compress.py
"""

import tempfile
from pathlib import Path

import torch

from gatedrnn import LanguageModel
from gatedrnn.models import LanguageModelConfig
from gatedrnn.models.saving import save_tensors
from gatedrnn.studies.compression import Scheme, compressed

torch.manual_seed(1)
model = LanguageModel(LanguageModelConfig(1000, cell="onlstm", embedding_size=100, hidden_sizes=(200, 100))).eval()
tokens = torch.randint(0, 1000, (30, 1))

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    file = Path(folder) / "model.safetensors"
    before = file.stat().st_size
    save_tensors(folder, compressed(model, Scheme("int8")))
    print(f"{before:,} → {file.stat().st_size:,} bytes")
    small = LanguageModel.from_pretrained(folder)

with torch.no_grad():
    difference = (small(tokens).logits.softmax(-1) - model(tokens).logits.softmax(-1)).abs().max()
print(f"the largest change of a probability: {difference:.1e}")

states = None  # a token at a time: only a quarter of the bytes is read for each
with torch.no_grad():
    for token in tokens[:5]:
        output = small(token[None], states)
        states = output.states
        print(int(token), "→", int(output.logits.argmax()))

low_rank = Scheme("svd", gates=("input=20", "forget=10"))  # a rank for each gate, of the weights as they were
print(compressed(model, low_rank)["layers.0.weight_hh_l0"])
