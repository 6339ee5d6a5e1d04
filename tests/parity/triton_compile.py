"""Compile every Triton kernel, with the arguments that the loops give it, for a GPU, which needs none: `… CAPABILITY`."""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gatedrnn.sequence.backends.triton import loops
from gatedrnn.sequence.backends.triton.tuning import choices
from gatedrnn.sequence.plan import Plan

STORAGE = {"x", "u", "h_all", "work", "grad_h", "dh_u", "dx", "du"}  # of gates below; the others are states
INTEGERS = {"t", "old", "new", "B", "H", "P"}
FORWARD = {"KEEP": 1, "RAGGED": True}
BACKWARD = {"RAGGED": True, "GRAD_S": True, "GRAD_GATES": True}


class Recorder:
    """Takes the place of a kernel and keeps what it is launched with."""

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, num_warps, **constants):
        self.arguments, self.constants, self.warps = arguments, constants, num_warps


def main(capability: int) -> None:
    for name, rows in loops._ROWS.items():
        split = {"split_points": 115, "chunk": 10} if name == "onlstm" else {}
        plan = Plan(name, 1150, 4600, 4600, 0, 4600, hard=0b111111, **split)
        for part, names, flags in (
            ("forward", loops._FORWARD, FORWARD),
            ("forward_second", loops._FORWARD, FORWARD),
            ("backward", loops._BACKWARD, BACKWARD),
            ("backward_second", loops._BACKWARD, BACKWARD),
        ):
            kernel, launched = getattr(rows, part), Recorder()
            if kernel is None:
                continue
            loops._Launcher(plan, 20, 1152, rows, flags, torch.device("cpu"))(launched, list(names), 0, 0, 1)
            constants = {p.name for p in kernel.params if p.is_constexpr}
            assert constants == set(launched.constants), (name, part, constants ^ set(launched.constants))
            assert [*launched.arguments[: len(names)]] == kernel.arg_names[: len(names)], (name, part)
            assert len(launched.arguments) + len(constants) == len(kernel.arg_names), (name, part)
            for storage in ("fp32", "bf16", "fp16"):
                kinds = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(STORAGE, f"*{storage}")
                kinds |= dict.fromkeys(("gates", "grad_gates"), "*fp32" if name == "onlstm" else f"*{storage}")
                kinds |= {"lengths": "*i64"} | dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(constants, "constexpr")
                signature = {argument: kinds[argument] for argument in kernel.arg_names}
                for block, warps in choices(plan) if storage == "bf16" else [(None, launched.warps)]:
                    constant = launched.constants if block is None else {**launched.constants, "BLOCK": block}
                    source = ASTSource(fn=kernel, signature=signature, constexprs=constant)
                    built = triton.compile(
                        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}
                    )
                    print(name, part, storage, block, warps, len(built.asm["ptx"]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
