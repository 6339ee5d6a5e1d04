"""What `import gatedrnn` costs."""

import subprocess
import sys

HEAVY = ("matplotlib", "transformers", "lightning_fabric", "nltk", "rich")


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_and_its_models_loads_nothing_heavy():
    code = f"""
import sys, gatedrnn
print([m for m in {HEAVY} if m in sys.modules], "gatedrnn.cells" in sys.modules)
import gatedrnn.models
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert python(code).splitlines() == ["[] True", "[]"]


def test_importing_takes_little_more_than_torch():
    code = "import time, torch; t = time.process_time(); import gatedrnn; print(time.process_time() - t)"
    assert any(
        float(python(code)) <= 0.3 for _ in range(3)
    )  # seconds of the CPU; other processes may be in the way of one


def test_a_layer_on_the_cpu_imports_nothing_of_a_gpu():
    code = """
import sys, torch, gatedrnn
gatedrnn.ONLSTM(3, 4)(torch.zeros(2, 1, 3))[0].sum().backward()
print([m for m in sys.modules if m.startswith(("triton", "gatedrnn.sequence.backends.triton."))], torch.cuda.is_initialized())
"""
    python(code)  # the first process may trace the cell, for which PyTorch itself imports Triton; the graph is kept
    assert python(code) == "['gatedrnn.sequence.backends.triton.backend'] False"
