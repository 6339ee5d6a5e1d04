"""Faster ways than the reference to run a cell over time, one folder a device; each is held to the reference by tests."""
