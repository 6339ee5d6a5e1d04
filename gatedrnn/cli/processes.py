"""Which of the processes that torchrun starts this one is, and how many there are."""

import os


def rank() -> int:
    """This process's number; 0, the only one without torchrun, is the one that writes and speaks."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """How many train together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))
