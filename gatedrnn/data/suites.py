"""Test suites of SyntaxGym: items whose sentences, one a condition, are cut into regions, and predictions about them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import parse_object, read_lines

METRICS = ("sum", "mean", "median", "range", "max", "min")
_NUMBER = re.compile(r"\d{1,9}")
_EVERY = "all"  # of SyntaxGym: every metric is kept, and predictions are about the sum


@dataclass(frozen=True)
class Item:
    """One item. Args: number: its own; conditions: by name, the text of each region by its number, in the order of the text."""

    number: int
    conditions: Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Suite:
    """A test suite.

    Args:
        path: of its file, for messages.
        name: `meta.name`, else that of the file.
        metric: one of METRICS: what a region's surprisals become.
        predictions: formulae, as written.
        regions: names of the regions by number, where the file has them.
        items: at least one.
    """

    path: str
    name: str
    metric: str
    predictions: Sequence[str]
    regions: Mapping[int, str]
    items: Sequence[Item]


def read_suite(path: Path | str) -> Suite:
    """A suite in SyntaxGym's JSON, `.gz` too.

    Where `predictions` is empty, `meta.string_predictions` are read, as in the suites of Hu et al. 2020.

    Raises: DataError: the file cannot be read, or is no suite (with the item, condition and region).
    """
    name = str(path)
    whole = parse_object("\n".join(line for _, line in read_lines(path)), name, "a test suite of SyntaxGym")
    meta = _object(name, whole.get("meta", {}), "meta", 'Write {"name": "my suite", "metric": "sum"}')
    names = _object(name, whole.get("region_meta") or {}, "region_meta", 'Write {"1": "subject", "2": "verb"}')
    regions = {_number(f"{name} region_meta", key): str(value) for key, value in names.items()}
    items = [_item(name, one, k, regions) for k, one in enumerate(_list(name, whole, "items"), 1)]
    if twice := [number for number, many in Counter(item.number for item in items).items() if many > 1]:
        raise DataError(name, "item_number must be unique", f"{twice[0]} twice", "Give each item its own")
    metric = meta.get("metric", METRICS[0])
    metric = METRICS[0] if metric == _EVERY else metric
    if metric not in METRICS:
        known = ", ".join(METRICS)
        raise DataError(f"{name} meta.metric", f"must be one of {known}", repr(metric), "Choose one of them")
    title = str(meta.get("name") or Path(name).name.split(".")[0])
    return Suite(name, title, metric, _predictions(name, whole, meta), regions, items)


def _predictions(name: str, whole: Mapping[str, Any], meta: Mapping[str, Any]) -> list[str]:
    given = whole.get("predictions") or meta.get("string_predictions")
    formulae = []
    for k, one in enumerate(_list(name, {"predictions": given}, "predictions")):
        kind, formula = (one.get("type", "formula"), one.get("formula")) if isinstance(one, dict) else ("formula", one)
        if kind != "formula" or not isinstance(formula, str):
            advice = 'Write {"type": "formula", "formula": "(2;%match%) < (2;%mismatch%)"}'
            got = repr(one)[:60]
            raise DataError(f"{name} predictions[{k}]", "must have type formula and a formula", got, advice)
        formulae.append(formula)
    return formulae


def _item(name: str, found: Any, k: int, regions: Mapping[int, str]) -> Item:
    place = f"{name} item {k}"
    item = _object(place, found, "an item")
    number = _number(f"{place} item_number", item.get("item_number", k))
    conditions: dict[str, dict[int, str]] = {}
    for one in _list(place, item, "conditions"):
        condition = _object(place, one, "a condition").get("condition_name")
        if not isinstance(condition, str) or not condition.strip() or condition.strip() in conditions:
            rule, advice = "condition_name must be a string, unique in its item", "Give each condition its own"
            raise DataError(place, rule, repr(condition), advice)
        conditions[condition.strip()] = _regions(f"{place}, condition {condition}", one, regions)
    return Item(number, conditions)


def _regions(place: str, condition: Mapping[str, Any], names: Mapping[int, str]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for one in _list(place, condition, "regions"):
        region = _object(place, one, "a region")
        number, content = _number(f"{place} region_number", region.get("region_number")), region.get("content")
        if number in texts or (names and number not in names):
            rule, advice = "must be in region_meta", "Add it there, or give the region a number that is"
            if number in texts:
                rule, advice = "region_number must be unique in its condition", "Give each region its own"
            raise DataError(place, rule, number, advice)
        if not isinstance(content, str):
            advice = 'Write its words, or "" for none'
            raise DataError(f"{place}, region {number}", "content must be a string", repr(content), advice)
        texts[number] = content
    return texts


def _object(place: str, found: Any, what: str, advice: str = "Is it a test suite of SyntaxGym?") -> dict[str, Any]:
    if not isinstance(found, dict):
        raise DataError(place, f"{what} must be a JSON object", repr(found)[:40], advice)
    return found


def _list(place: str, found: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(found.get(key), list) or not found[key]:
        got = "none" if found.get(key) in (None, []) else repr(found[key])[:40]
        raise DataError(place, f"must have a list of {key}, with at least one", got, f'Write "{key}": [...]')
    return found[key]


def _number(place: str, found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int | str) or not _NUMBER.fullmatch(str(found)):
        raise DataError(place, "must be a whole number", repr(found)[:40], "Write a number such as 1")
    return int(found)
