"""Which loop computes what: values that follow from one another element by element share a loop over a row's units or chunks.

Between loops lie sums along the row, softmax, and what moves a value from chunks to units or back; what crosses from one loop to
another stands in memory. A value is computed as late as it can be, so that few cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import POINTWISE, REDUCTIONS, Node

Place = tuple[str, int]
"""A memory and the part of it: ("a", 2) is the third gate's column, ("slot", 0) a row of scratch."""


@dataclass
class Stage:
    """What is done at one time: first what needs whole rows, then a loop for each size, then numbers of the row."""

    whole: list[Node] = field(default_factory=list)
    loops: dict[int, list[Node]] = field(default_factory=dict)
    numbers: list[Node] = field(default_factory=list)


@dataclass
class Schedule:
    """Stages in order, where values stand that outlive their loop, what is stored where, and how many slots are needed."""

    stages: list[Stage]
    standing: dict[Node, Place]
    stores: dict[Node, list[Place]]
    slots: int
    at: dict[Node, int]


def schedule(targets: list[tuple[Node, Place]], same: dict[str, str]) -> Schedule:
    """The order in which the values of `targets` are computed and stored.

    Args: same: kinds of memories that lie where what is stored as another kind lies.

    Raises: UnsupportedError: a memory is written before its last reader.
    """
    targets = list(_one_place_each(targets))
    found, early = _planned(targets, same)
    if early:  # what is stored there is computed again as a copy, which nothing else reads, so that it comes last
        targets = [(_copy(node) if place in early else node, place) for node, place in targets]
        found, early = _planned(targets, same)
    for kind, k in early:
        raise UnsupportedError(f"{kind} {k} read after its place was written")
    return found


def _one_place_each(targets: list[tuple[Node, Place]]) -> Iterator[tuple[Node, Place]]:
    """What is no loop over elements writes to one place: the others, and those that are added to, get copies."""
    written: set[Node] = set()
    for node, place in targets:
        if node.op in POINTWISE or node.op == "load":
            yield node, place
        elif node.op == "zeros":
            if not place[0].startswith("+"):
                yield Node("zeros", (), node.size), place
        elif node in written or place[0].startswith("+"):
            yield _copy(node), place
        else:
            written.add(node)
            yield node, place


def _copy(node: Node) -> Node:
    return Node("same", (node,), node.size)


def _planned(targets: list[tuple[Node, Place]], same: dict[str, str]) -> tuple[Schedule, set[Place]]:
    """A schedule, and the places that are written too early in it."""
    order = list(ordered([node for node, _ in targets]))
    users: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for arg in node.inputs:
            if arg.op != "load":
                users[arg].append(node)
    loops = _long_loops(order)
    early = _earliest(order, loops)
    last, at = max(early.values(), default=0), {early[node] for node in loops}
    late: dict[Node, int] = {}
    for node in reversed(order):
        late[node] = min((late[u] - (not _together(node, u)) for u in users[node]), default=last)
        if node in loops:  # in one of the long loops that there are anyhow
            late[node] = max(stage for stage in at if stage <= late[node])
    stages = [Stage() for _ in range(last + 1)]
    for node in order:
        stage = stages[late[node]]
        if node.op in REDUCTIONS:
            stage.loops.setdefault(node.inputs[0].size, []).append(node)
        elif node.op in POINTWISE and node.size:
            stage.loops.setdefault(node.size, []).append(node)
        else:
            (stage.numbers if node.op in POINTWISE else stage.whole).append(node)
    stores: dict[Node, list[Place]] = {}
    for node, place in targets:
        stores.setdefault(node, []).append(place)
    found = Schedule(stages, {}, stores, 0, late)
    _stand(found, order, users)
    return found, _too_early(found, users, targets, same)


def _long_loops(order: list[Node]) -> dict[Node, int]:
    """The elementwise values of the most elements, by how often a path to them left such a loop and came back."""
    longest = max((node.size for node in order if node.op in POINTWISE), default=0)
    crossed: dict[Node, int] = {}
    found: dict[Node, int] = {}
    loops_end: set[Node] = set()
    for node in order:
        args = [arg for arg in node.inputs if arg.op != "load"]
        crossed[node] = max((crossed[arg] + (arg in loops_end and not _joined(arg, node)) for arg in args), default=0)
        if node.op in REDUCTIONS:
            loops_end.add(node)
        if node.op in POINTWISE and node.size == longest and longest:
            found[node] = crossed[node]
            loops_end.add(node)
    return found


def _earliest(order: list[Node], loops: dict[Node, int]) -> dict[Node, int]:
    """The first stage of each value, those of one long loop together: one walk over a row's units costs less than two."""
    floors: dict[int, int] = {}
    while True:
        early: dict[Node, int] = {}
        for node in order:
            first = max((early[a] + (not _together(a, node)) for a in node.inputs if a.op != "load"), default=0)
            early[node] = max(first, floors.get(loops[node], 0)) if node in loops else first
        found = {group: max(early[n] for n in loops if loops[n] == group) for group in loops.values()}
        if found == floors:
            return early
        floors = found


def _together(node: Node, user: Node) -> bool:
    """Whether both can be computed in one stage: in one loop, or a number after the loops that it follows from."""
    if user.op in POINTWISE and not user.size:
        return node.op in REDUCTIONS or (node.op in POINTWISE and not node.size)
    return _joined(node, user)


def _joined(node: Node, user: Node) -> bool:
    """Whether both can be computed in one loop, the first straight before the second."""
    if node.op not in POINTWISE or not node.size:
        return False
    return user.op in REDUCTIONS or (user.op in POINTWISE and user.size == node.size)


def ordered(nodes: list[Node]) -> Iterator[Node]:
    """Those that are computed, each after what it is computed from."""
    seen: set[Node] = set()
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node.op != "load" and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(node.inputs)]


def _stand(found: Schedule, order: list[Node], users: dict[Node, list[Node]]) -> None:
    """Give every value that is read outside its loop a place: where it is stored anyhow, or a slot that is free by then."""
    busy: list[int] = []  # the last stage that reads each slot
    for stage in range(len(found.stages)):
        for node in (n for n in order if found.at[n] == stage):
            # in registers: every user is in its loop
            within = node.op in POINTWISE and all(_joined(node, u) and found.at[u] == stage for u in users[node])
            if not node.size or node.op == "head" or within:
                continue
            kept = next((place for place in found.stores.get(node, []) if not place[0].startswith("+")), None)
            if kept is None:
                until = max((_last_read(found, user, users) for user in users[node]), default=stage)
                slot = next((k for k, end in enumerate(busy) if end < stage), len(busy))
                busy[slot : slot + 1] = [until]
                kept = "slot", slot
            found.standing[node] = kept
    found.slots = len(busy)


def _last_read(found: Schedule, user: Node, users: dict[Node, list[Node]]) -> int:
    """The stage until which what `user` reads must stand: a head is only a name for what it is cut from."""
    if user.op != "head":
        return found.at[user]
    return max((_last_read(found, each, users) for each in users[user]), default=found.at[user])


def _too_early(
    found: Schedule, users: dict[Node, list[Node]], targets: list[tuple[Node, Place]], same: dict[str, str]
) -> set[Place]:
    """Memories that are read after they were written."""
    written, early = {place: node for node, place in targets if node.op != "load"}, set()
    for node in users:
        for arg in node.inputs:
            place = arg.args if arg.op == "load" else None
            for each in [place, (same.get(place[0], ""), place[1])] if place else []:
                writer = written.get(each, node)
                whole = writer.op not in POINTWISE or node.op == "head"
                if writer is not node and found.at[writer] < _last_read(found, node, users) + whole:
                    early.add(each)
    return early
