"""From a Numba function to machine code, on disk and in this process; it is given the loops, and imports none."""
