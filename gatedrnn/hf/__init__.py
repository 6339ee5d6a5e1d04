"""Hugging Face transformers: runs as folders that its Auto classes load, and back; nothing else here imports transformers.

Importing it makes `AutoConfig` and `AutoModelForCausalLM` know `model_type: gatedrnn`.
"""

from gatedrnn.core.errors import ArgumentError

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as missing:
    raise ArgumentError(
        "gatedrnn.hf", "needs the library transformers", str(missing), "Install it: pip install 'gatedrnn[hf]'"
    ) from missing

from gatedrnn.hf.configuration import GatedRNNConfig
from gatedrnn.hf.folder import export_run, import_folder
from gatedrnn.hf.modeling import GatedRNNForCausalLM, GatedRNNOutput
from gatedrnn.hf.state import RecurrentState
from gatedrnn.hf.tokenization import tokenizer_of, vocabulary_of

AutoConfig.register(GatedRNNConfig.model_type, GatedRNNConfig, exist_ok=True)
AutoModelForCausalLM.register(GatedRNNConfig, GatedRNNForCausalLM, exist_ok=True)

__all__ = [
    "GatedRNNConfig",
    "GatedRNNForCausalLM",
    "GatedRNNOutput",
    "RecurrentState",
    "export_run",
    "import_folder",
    "tokenizer_of",
    "vocabulary_of",
]
