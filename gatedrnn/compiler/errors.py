"""Why a step has no kernels."""


class UnsupportedError(Exception):
    """What of a step the compiler cannot express, and the line of the user's file."""
