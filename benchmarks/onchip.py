"""Whether U fits into what a GPU has on its chip: `python benchmarks/onchip.py`. Arithmetic, no measurement.

U of an ON-LSTM (chunks of 10 units, or 8) in bfloat16 is R · H · 2 bytes. On the chip: shared memory that one block may have, on
every multiprocessor, and half of the registers (the other half computes). Sizes: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; multiprocessors: the vendor's data sheets.
"""

from dataclasses import dataclass

from gatedrnn import CELLS


@dataclass(frozen=True)
class Chip:
    """A GPU: multiprocessors, KiB of shared memory for a block, KiB of registers, of one."""

    name: str
    multiprocessors: int
    shared_kib: int
    registers_kib: int = 256

    def megabytes(self, registers: bool) -> float:
        each = self.shared_kib + (self.registers_kib / 2 if registers else 0)
        return self.multiprocessors * each * 1024 / 1e6


CHIPS = [
    Chip("T4 (7.5)", 40, 64),
    Chip("A100 (8.0)", 108, 163),
    Chip("RTX 4090 (8.9)", 128, 99),
    Chip("L40S (8.9)", 142, 99),
    Chip("H100 SXM, H200 (9.0)", 132, 227),
]
SIZES = [256, 650, 1150, 2048]


def main() -> None:
    weights = {}
    for hidden in SIZES:
        chunk = 10 if hidden % 10 == 0 else 8
        weights[hidden] = CELLS["onlstm"].make_spec(hidden, chunk_size=chunk).rows * hidden * 2 / 1e6
    sizes = " | ".join(f"H = {hidden}: {size:.1f} MB" for hidden, size in weights.items())
    print(f"| GPU | shared memory, MB | with registers, MB | {sizes} |\n|---|--:|--:|{'---|' * len(SIZES)}")
    for chip in CHIPS:
        shared, both = chip.megabytes(False), chip.megabytes(True)
        fits = ["shared" if size < shared else "with registers" if size < both else "no" for size in weights.values()]
        print(f"| {chip.name} | {shared:.1f} | {both:.1f} | {' | '.join(fits)} |")


if __name__ == "__main__":
    main()
