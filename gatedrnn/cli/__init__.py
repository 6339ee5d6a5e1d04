"""The command line: parse, call, print; no mathematics, imported by nothing."""
