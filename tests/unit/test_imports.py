"""What `import gatedrnn` costs and loads, seen in a process of its own, and that it works on systems without forks."""

import json
import os
import subprocess
import sys
from itertools import chain

import pytest
import torch

import gatedrnn

HEAVY = ("matplotlib", "transformers", "lightning_fabric", "nltk", "rich")
WHEN_USED = ("gatedrnn.data", "gatedrnn.training", "gatedrnn.studies")
STEPS = f"""
import json, sys, time
import torch

began = time.process_time()
import gatedrnn
found = {{"seconds": time.process_time() - began}}

def loaded(*names):
    return [name for name in names if name in sys.modules]

found["named"] = sorted({{"load_run", "Run", "Vocabulary"}} & set(dir(gatedrnn)) & set(gatedrnn.__all__))
found["package"] = loaded(*{(*HEAVY, *WHEN_USED)})
found["cells"] = "gatedrnn.cells" in sys.modules

gatedrnn.ONLSTM(3, 4)(torch.zeros(2, 1, 3))[0].sum().backward()
found["gpu"] = [name for name in sys.modules if name.startswith(("triton", "gatedrnn.sequence.backends.triton."))]
found["cuda"] = torch.cuda.is_initialized()

import gatedrnn.models
found["models"] = loaded(*{HEAVY})

from gatedrnn import Run, Vocabulary, load_run
import gatedrnn.data, gatedrnn.training.run
theirs = gatedrnn.training.run.Run, gatedrnn.training.run.load_run, gatedrnn.data.Vocabulary
found["same"] = (Run, load_run, Vocabulary) == theirs
print(json.dumps(found))
"""


def fresh():
    """What a process finds that imports one thing after another."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    gatedrnn.ONLSTM(3, 4)(torch.zeros(2, 1, 3))[0].sum().backward()  # its graph and kernels are kept
    return fresh()


def test_importing_the_package_and_its_models_loads_nothing_heavy(found):
    assert found["package"] == found["models"] == [] and found["cells"]


def test_importing_takes_little_more_than_torch(found):
    tries = chain([found], (fresh() for _ in range(2)))
    assert any(each["seconds"] <= 0.3 for each in tries)  # of the CPU; other processes may be in the way of one


def test_a_layer_on_the_cpu_imports_nothing_of_a_gpu(found):
    if "triton" in found["gpu"]:  # it traced the cell, for which PyTorch itself imports Triton; now the graph is kept
        found = fresh()
    assert found["gpu"] == ["gatedrnn.sequence.backends.triton.backend"] and not found["cuda"]


def test_names_are_there_and_imported_when_used(found):
    assert found["named"] == ["Run", "Vocabulary", "load_run"] and found["same"]


WITHOUT_FORKS = """
import os, sys
import torch
del os.register_at_fork, os.fork, os.sched_getaffinity
sys.modules.update(dict.fromkeys(("resource", "pwd", "grp", "termios")))
import gatedrnn, gatedrnn.export.writing
output, _ = gatedrnn.ONLSTM(3, 4)(torch.zeros(2, 1, 3))
assert output.shape == (2, 1, 4)
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="has no forks anyway")
def test_the_package_is_imported_where_there_are_no_forks():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FORKS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


WITHOUT_A_HOME = """
import os, pwd, sys

def nobody(uid):
    raise KeyError(uid)

pwd.getpwuid = nobody
import gatedrnn.cli.main
from gatedrnn import *
from gatedrnn.trees.tree import Tree

assert "HOME" not in os.environ and Tree.fromstring("(S a b)").leaves() == ["a", "b"]
sys.argv = ["gatedrnn", "--version"]
sys.exit(gatedrnn.cli.main.main())
"""


@pytest.mark.skipif(os.name != "posix", reason="users without a home")
def test_commands_run_for_a_user_without_a_home():
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "NLTK_DATA")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_HOME], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0 and done.stdout.startswith("gatedrnn "), done.stderr
