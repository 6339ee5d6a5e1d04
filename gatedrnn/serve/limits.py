"""What a server refuses, and how much it holds."""

from dataclasses import dataclass

from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.errors import ArgumentError

MOST_ROWS = 64
"""Rows of a step: up to so many, the kernels give each row the bits that it has alone."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Args:
        rows: number of completions computed side by side, at most 64.
        waiting: number of completions that may wait; beyond it the answer is 429.
        requests: number of requests that may be open at once; beyond it the answer is 503.
        choices: largest number of prompts × n in one request.
        prompt_tokens: largest number of tokens in all texts of one request; an empty line counts as one, and a prompt counts n
            times with echo and logprobs.
        new_tokens: largest max_tokens of a request.
        body_bytes: largest size of a request's body; beyond it the answer is 413.
        seconds: longest time that a request may take.
        cache_mib: memory for states kept for the beginnings of prompts; 0 for none.

    Raises: ArgumentError: a value is out of range.
    """

    rows: int = 32
    waiting: int = 256
    requests: int = 256
    choices: int = 64
    prompt_tokens: int = 8192
    new_tokens: int = 2048
    body_bytes: int = 1_000_000
    seconds: float = 60.0
    cache_mib: int = 64

    def __post_init__(self) -> None:
        for name in ("rows", "waiting", "requests", "choices", "prompt_tokens", "new_tokens", "body_bytes"):
            positive_int(f"serve.{name}", getattr(self, name))
        positive_int("serve.cache_mib", self.cache_mib, minimum=0)
        positive_number("serve.seconds", self.seconds)
        if self.rows > MOST_ROWS:
            raise ArgumentError("serve.rows", f"must be at most {MOST_ROWS}", self.rows, f"Give {MOST_ROWS}")
