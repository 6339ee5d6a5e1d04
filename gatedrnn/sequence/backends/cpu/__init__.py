"""Whole-sequence kernels for the CPU, compiled by Numba on first use; the equations live in cells.

backend.py takes a request to recurrence/operator.py. Its loops (recurrence/loops.py) call the cell's own part (rows.py) and
products (matmul/). docs/inside.md lists the packages. Every kernel is tested against the reference (sequence/reference.py).
"""
