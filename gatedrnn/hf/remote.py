"""What `trust_remote_code=True` reads in a folder: a file that imports this package, and where config.json names it."""

from pathlib import Path

from gatedrnn.core.files import write_text

_NAME = "modeling_gatedrnn"
AUTO_MAP = {
    "AutoConfig": f"{_NAME}.GatedRNNConfig",
    "AutoModelForCausalLM": f"{_NAME}.GatedRNNForCausalLM",
}
"""The entry `auto_map` of config.json."""

_SHIM = '''"""What `trust_remote_code=True` reads: the classes of the package gatedrnn, which must be installed."""

from gatedrnn.hf import GatedRNNConfig, GatedRNNForCausalLM

__all__ = ["GatedRNNConfig", "GatedRNNForCausalLM"]
'''


def write_remote_code(folder: Path) -> None:
    """Write the file that `AUTO_MAP` names. Raises: DataError: the folder cannot be written."""
    write_text(folder / f"{_NAME}.py", _SHIM)
