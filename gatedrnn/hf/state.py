"""The state of a model after what it has read, as transformers hands a cache on. Dimensions: B batch, H hidden, T time."""

from typing import Any

from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.language_model import States


class RecurrentState:
    """The state after what was read, which `generate` carries.

    Args:
        states: by layer, each state [1, B, H].
        read_BT: ids of the tokens that were read, padding included.
    """

    is_compileable = is_croppable = False
    is_linear = (True,)  # by layer: whether a text's beginning is not to be had again, as of Mamba's state

    def __init__(self, states: States, read_BT: Tensor) -> None:
        self.states, self.read_BT = states, read_BT

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens read, padding included; the same in all layers."""
        return self.read_BT.shape[1]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the states of other rows, those that a beam search goes on from."""
        self.states = [
            tuple(state.index_select(1, beam_idx.to(state.device)) for state in layer) for layer in self.states
        ]
        self.read_BT = self.read_BT.index_select(0, beam_idx.to(self.read_BT.device))


def given_state(*named: Any) -> RecurrentState | None:
    """The state that was given, by whichever name; None for none.

    Raises: ArgumentError: several, or one that is not a `RecurrentState`.
    """
    owner, advice = "GatedRNNForCausalLM.cache", "Give the cache of an earlier output"
    given = [each for each in named if each is not None]
    if not given:
        return None
    if any(each is not given[0] for each in given):
        raise ArgumentError(owner, "must be one state", "another one by its former name", advice)
    if not isinstance(given[0], RecurrentState):
        raise ArgumentError(owner, "must be a RecurrentState", type(given[0]).__name__, advice)
    return given[0]


def unread(state: RecurrentState, input_ids: Tensor) -> int:
    """Number of the last tokens of `input_ids` [B, T] that the state has not read.

    Raises: ArgumentError: they do not begin with the tokens that it has read, in as many rows, or there are no more.
    """
    rows, seen = state.read_BT.shape
    left = input_ids.shape[1] - seen
    if input_ids.shape[0] != rows:
        rule, advice = f"must have the {rows} rows of the state", "Give the whole text without a state"
        raise ArgumentError("generate.input_ids", rule, input_ids.shape[0], advice)
    if left < 1 or not input_ids[:, :seen].equal(state.read_BT.to(input_ids.device)):
        rule = f"must be the {seen} tokens that the state has read, and more"
        raise ArgumentError("generate.input_ids", rule, f"{input_ids.shape[1]} tokens", "Give the whole text")
    return left
