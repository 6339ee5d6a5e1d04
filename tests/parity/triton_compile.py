"""Compile Triton kernels, with the arguments that the loops give them, for a GPU, which needs none: `… CAPABILITY [VARIANT…]`.

Of other variants than those that are named, arguments alone are checked; where none is named, all are compiled.
"""

import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[2]))
from gatedrnn import CELLS, Gates
from gatedrnn.sequence.backends.triton import loops
from gatedrnn.sequence.backends.triton.compiled import rows_of, shape_of
from gatedrnn.sequence.backends.triton.tuning import choices
from gatedrnn.sequence.plan import kernel_of
from tests.parity.harness import SOME, VARIANTS

STORAGE = {"x", "u", "h_all", "work", "grad_h", "dh_u", "d_left", "dx", "du"}  # of gates below; the others are states
INTEGERS = {"t", "old", "new", "B", "H", "P"}
FORWARD = {"KEEP": 1, "RAGGED": True}
BACKWARD = {"RAGGED": True, "GRAD_S": True, "GRAD_GATES": True}


class Recorder:
    """Takes the place of a kernel and keeps what it is launched with."""

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, num_warps, **constants):
        self.arguments, self.constants, self.warps = arguments, constants, num_warps


def main(capability: int, chosen: list[str]) -> None:
    for variant, (name, options) in VARIANTS.items():
        if variant == "peephole-full":  # which has no kernels for a GPU
            continue
        options = {key: 10 if value == SOME else value for key, value in options.items()}
        spec = CELLS[name].make_spec(1150, **options).with_gates(Gates(straight_through=True))
        kernel = kernel_of(CELLS[name].step, spec)
        plan, rows = shape_of(kernel), rows_of(kernel)
        for part, names, flags in (
            ("forward", loops._FORWARD, FORWARD),
            ("forward_second", loops._FORWARD, FORWARD),
            ("backward", loops._BACKWARD, BACKWARD),
            ("backward_second", loops._BACKWARD, BACKWARD),
        ):
            kernel, launched = getattr(rows, part), Recorder()
            if kernel is None:
                continue
            loops._Launcher(plan, 20, 1152, flags, torch.device("cpu"))(launched, list(names), 0, 0, 1)
            constants = {p.name for p in kernel.params if p.is_constexpr}
            assert constants == set(launched.constants), (variant, part, constants ^ set(launched.constants))
            assert [*launched.arguments[: len(names)]] == kernel.arg_names[: len(names)], (variant, part)
            assert len(launched.arguments) + len(constants) == len(kernel.arg_names), (variant, part)
            if chosen and variant not in chosen:
                print(variant, part, "checked", flush=True)
                continue
            every = variant in ("lstm", "onlstm-chunks") and not chosen
            for storage in ("bf16", "fp32", "fp16") if every else ("bf16",):
                kinds = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(STORAGE, f"*{storage}")
                kinds |= dict.fromkeys(("gates", "grad_gates"), "*fp32" if plan.gpu.wide else f"*{storage}")
                kinds |= {"lengths": "*i64"} | dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(constants, "constexpr")
                signature = {argument: kinds[argument] for argument in kernel.arg_names}
                for block, warps in choices(plan) if every and storage == "bf16" else [(None, launched.warps)]:
                    constant = launched.constants if block is None else {**launched.constants, "BLOCK": block}
                    source = ASTSource(fn=kernel, signature=signature, constexprs=constant)
                    built = triton.compile(
                        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}
                    )
                    print(variant, part, storage, block, warps, len(built.asm["ptx"]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
