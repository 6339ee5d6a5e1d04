"""Vectors in Numba: types, arithmetic, functions of lanes and of whole rows, and the tiles of products as LLVM's text."""
