"""What commands in which several runs vote share."""

from typing import Any

from gatedrnn.cli.arguments import option
from gatedrnn.cli.text import PARSERS
from gatedrnn.core.errors import ArgumentError
from gatedrnn.studies.parsing.votes import PRIOR

FAMILIES = (*PARSERS, PRIOR)
"""Families of voters: runs of these tasks, and a right-branching tree."""


def weight_option() -> Any:
    """`--weight`."""
    told = (
        f"weight of all voters of a family together, repeatable; FAMILY is one of {', '.join(FAMILIES)}; {PRIOR} adds a "
        "right-branching tree as a prior [1 each, no prior]"
    )
    return option((), told, "FAMILY=NUMBER")


def read_weights(told: tuple[str, ...]) -> dict[str, float]:
    """The weight of each family named. Raises: ArgumentError: not FAMILY=NUMBER, or a family twice."""
    found: dict[str, float] = {}
    for each in told:
        family, _, number = each.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if family not in FAMILIES or not 0 < weight < float("inf"):
            rule = f"must be FAMILY=NUMBER, with a family of {', '.join(FAMILIES)} and a number above 0"
            raise ArgumentError("--weight", rule, repr(each), f"Try --weight {FAMILIES[1]}=1")
        if family in found:
            raise ArgumentError("--weight", "must name each family once", f"{family} twice", "Keep one of them")
        found[family] = weight
    return found


def weights_told(by_family: dict[str, float]) -> str:
    """What the row of a consensus says of its families' weights."""
    prior = " and a right-branching prior" if PRIOR in by_family else ""
    equal = len(set(by_family.values())) == 1
    return prior + (", each family with the same weight" if equal else ", weights below" if by_family else "")
