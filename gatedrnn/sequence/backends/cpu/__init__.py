"""Whole-sequence kernels for the CPU, compiled by Numba on first use; the equations live in cells, the truth in reference.

backend.py takes a request to operators.py, which runs a kernel of kernels.py: loops.py (time) over rows/ (a cell's step) and
product.py (matrix products) on tiles.py (their innermost loop). direct.py multiplies a few rows with a weight as it lies,
split.py in nearly float32, small.py with compressed weights, as pieces.py lays them out.
simd.py, lanewise.py, tiling.py and widening.py are the language that these are written in.
"""
