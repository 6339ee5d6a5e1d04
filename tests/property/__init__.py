"""Properties that hold for every call: cases are data, drawn at random, run in a child process and replayed by printing."""
