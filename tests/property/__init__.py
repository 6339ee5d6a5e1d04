"""Properties that hold for every call: cases are data, drawn at random, run in a process of their own and replayed by printing."""
