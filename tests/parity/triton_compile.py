"""Compile every Triton kernel for a GPU, which needs none: `python triton_compile.py CAPABILITY`. One line a kernel."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gatedrnn.sequence.backends.triton import loops

STORAGE = {"x", "u", "h_all", "work", "grad_h", "dh_u", "dx", "du"}  # the others are states, or as the test says
INTEGERS = {"t", "old", "new", "B", "H"}
CONSTANTS = {
    "HARD": 0b111111, "KEEP": 1, "RAGGED": True, "GRAD_S": True, "GRAD_GATES": True,
    "K": 115, "C": 10, "BLOCK": 128, "BLOCK_C": 16,
}  # fmt: skip


def main(capability: int) -> None:
    for name, rows in loops._ROWS.items():
        for part in ("forward", "forward_second", "backward", "backward_second"):
            kernel = getattr(rows, part)
            for storage in ("fp32", "bf16", "fp16") if kernel is not None else ():
                constants = {k: v for k, v in (CONSTANTS | dict(rows.constants)).items() if k in kernel.arg_names}
                gates = "fp32" if name == "onlstm" else storage

                def kind(argument, constants=constants, storage=storage, gates=gates):
                    if argument in constants:
                        return "constexpr"
                    if argument in INTEGERS:
                        return "i32"
                    if argument == "lengths":
                        return "*i64"
                    return f"*{storage if argument in STORAGE else gates if argument in ('gates', 'grad_gates') else 'fp32'}"

                signature = {argument: kind(argument) for argument in kernel.arg_names}
                built = triton.compile(
                    ASTSource(fn=kernel, signature=signature, constexprs=constants),
                    target=GPUTarget("cuda", capability, 32),
                )
                print(name, part, storage, len(built.asm["ptx"]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
