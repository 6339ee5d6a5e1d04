"""From a cell's `step` to kernels: traced, differentiated by PyTorch, laid out as loops over a row, written for Numba and Triton.

outside      what a step reads beside its arguments, which must not change
asked        what it may ask its tensors for
tracing      `step` and its derivative as one graph of PyTorch's operators
reader       that graph's nodes, read into a small graph (`graph`)
elementwise  of them, those that work element by element
graph        the small graph: values of units, of chunks and of a row
products     products inside a step, and when each is done
equations    the graph in two directions, with the memories its values come from and go to
schedule     which loop computes what, and what must stand in memory between two loops
numba        the loops as text
triton       the same for a program of a GPU
plan         where a cell's columns lie
cell         the columns and the text of one cell
kept         all that, remembered and kept on disk
"""
