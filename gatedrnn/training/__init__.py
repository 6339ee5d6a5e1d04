"""The training loop, optimisers, schedules, a run on disk, exact evaluation; importing it alone loads nothing heavy."""
