"""Damage to files: bytes, JSON, YAML, safetensors, trees, text, gzip; all of it drawn from one `random.Random`."""

import gzip
import json
import shutil
import struct
from pathlib import Path
from random import Random

import yaml

DEEP = 100_000
TOKENS = [
    "\0",
    "\ufeff",
    "\u2028",
    "\u0085",
    "\r",
    "\x1b[31m",
    "\u202e",
    "(",
    ")",
    "()",
    "((",
    "))",
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "\\",
    "\n",
    "\n\n",
    "\t",
    " ",
    "#",
    "---",
    "<eos>",
    "<unk>",
    "&a",
    "*a",
    "!!int",
    "<<:",
    "-",
    "NaN",
    "1e999",
    "\ud800",
    "😀",
    "é",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    2**31,
    2**63,
    10**30,
    -(10**30),
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "--",
    "1e-3",
    "\0",
    "\ud800",
    "x" * 5000,
    "../..",
    "/dev/null",
    "/",
    [],
    [[]],
    [1, "a"],
    {},
    {"a": 1},
    {"": None},
    [0] * 3000,
]


def damaged(random: Random, raw: bytes, suffix: str) -> bytes:
    """A file's content with one to three changes, half of them in terms of its format."""
    for _ in range(random.choice((1, 1, 2, 3))):
        known = {".json": _json, ".jsonl": _lines, ".yaml": _yaml, ".safetensors": _safetensors, ".trees": _trees}
        change = known.get(suffix) if random.random() < 0.6 else None
        raw = (change or _bytes)(random, raw)
    return raw


def replaced(random: Random, path: Path) -> None:
    """Something else where a file was: nothing, a folder, a link to nothing or to a device, an empty file."""
    path.unlink()
    how = random.randrange(5)
    if how == 1:
        path.mkdir()
    elif how == 2:
        path.symlink_to(path.with_name("nothing"))
    elif how == 3:
        path.symlink_to(random.choice(("/dev/null", "/dev/zero", "/dev/full")))
    elif how == 4:
        path.write_bytes(b"")


def packed(random: Random, raw: bytes) -> bytes:
    """As gzip, often damaged."""
    whole = gzip.compress(raw, 1)
    return random.choice(
        (whole, whole, whole + whole, whole + b"x", _bytes(random, whole), whole[: len(whole) // 2], raw)
    )


def value(random: Random) -> object:
    """A value that someone may have written."""
    if random.random() < 0.1:
        deep: object = []
        for _ in range(random.choice((20, 40, 300))):
            deep = [deep] if random.random() < 0.5 else {"a": deep}
        return deep
    return random.choice(VALUES)


def _bytes(random: Random, raw: bytes) -> bytes:
    at, end = sorted((random.randint(0, len(raw)), random.randint(0, len(raw))))
    token = random.choice(TOKENS).encode("utf-8", "surrogatepass")
    how = random.randrange(10)
    if how == 0:
        return raw[:at]
    if how == 1:
        return raw[:at] + raw[end:]
    if how == 2:
        return raw[:end] + raw[at:]
    if how == 3:
        return raw[:at] + random.randbytes(random.choice((1, 2, 8, 64))) + raw[at:]
    if how == 4:
        return raw[:at] + token * random.choice((1, 1, 3, 1000, DEEP)) + raw[at:]
    if how == 5:
        lines = raw.split(b"\n")
        random.shuffle(lines)
        return b"\n".join(lines)
    if how == 6:
        return raw.replace(b"\n", random.choice((b"\r\n", b"\r", b"", b" ", b"\n\n")))
    if how == 7:
        return bytes(raw[:at].decode("latin-1"), random.choice(("latin-1", "utf-16", "utf-8"))) + raw[at:]
    changed = bytearray(raw)
    for _ in range(random.choice((1, 1, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _tree(random: Random, found: object) -> object:
    """A JSON value with one place changed."""
    if isinstance(found, dict) and found and random.random() < 0.9:
        key = random.choice(list(found))
        how = random.random()
        if how < 0.1:
            return {k: v for k, v in found.items() if k != key}
        if how < 0.2:
            return {(f"{k}x" if k == key else k): v for k, v in found.items()}
        if how < 0.3:
            return found | {str(value(random))[:50]: value(random)}
        return found | {key: _tree(random, found[key])}
    if isinstance(found, list) and found and random.random() < 0.8:
        at = random.randrange(len(found))
        how = random.random()
        if how < 0.2:
            return found[:at] + found[at + 1 :]
        if how < 0.4:
            return [*found[:at], found[random.randrange(len(found))], *found[at:]]
        return [*found[:at], _tree(random, found[at]), *found[at + 1 :]]
    if isinstance(found, int | float) and random.random() < 0.3:
        return found + random.choice((1, -1, 0.5, 1000))
    return value(random)


def _json(random: Random, raw: bytes) -> bytes:
    try:
        return json.dumps(_tree(random, json.loads(raw))).encode()
    except (ValueError, RecursionError):
        return _bytes(random, raw)


def _lines(random: Random, raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    at = random.randrange(len(lines))
    deep = random.choice((b"[", b'{"good":')) * DEEP
    lines[at] = deep if random.random() < 0.1 else _json(random, lines[at])
    return b"\n".join(lines)


def _yaml(random: Random, raw: bytes) -> bytes:
    spiced = [
        "!!int ''",
        "!!int x",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!timestamp 2001-99-99",
        "2001-99-99",
        "2001-01-01",
        "9" * 5000,
        "[" * 1000,
        "{" * 1000,
        "- " * 1000,
        "!!binary x",
        "!!set {a}",
        "!!omap [x]",
        "!!python/object:os.system x",
        "*a",
        "&a [*a]",
        "{<<: [1]}",
        "? [a]\n  : b",
        "|\n  text",
        ">\n  text",
        "0x",
        "1:99",
        "yes",
        "~",
        "'",
        '"\\ud800"',
        "%",
        "@",
        "`",
        "-",
        ".nan",
    ]
    how = random.random()
    if how < 0.15:
        width, link = random.choice((2, 9)), random.choice((", ".join, lambda names: f"<<: [{', '.join(names)}]"))
        rows = [f"a{k}: &a{k} {{b: {link([f'*a{k - 1}'] * width)}}}" for k in range(1, 30)]
        return "\n".join(["a0: &a0 {c: 1}", *rows]).encode() + b"\n" + raw
    if how < 0.6:
        lines = raw.decode("utf-8", "replace").split("\n")
        at = random.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        lines[at] = f"{key}{colon} {random.choice(spiced)}"
        return "\n".join(lines).encode("utf-8", "replace")
    try:
        return yaml.safe_dump(_tree(random, yaml.safe_load(raw))).encode("utf-8", "surrogatepass")
    except (ValueError, yaml.YAMLError, LookupError, AttributeError, RecursionError):
        return _bytes(random, raw)


def _safetensors(random: Random, raw: bytes) -> bytes:
    """With another header, its length right or not."""
    try:
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
    except (struct.error, ValueError, RecursionError, MemoryError, OverflowError):
        return _bytes(random, raw)
    text = json.dumps(_tree(random, header)).encode() if random.random() < 0.9 else b"[" * DEEP
    length = len(text) if random.random() < 0.9 else random.choice((0, 2**40, 2**63 - 1, len(text) + 1))
    return struct.pack("<Q", length) + text + raw[8 + size :]


def _trees(random: Random, raw: bytes) -> bytes:
    lines = raw.split(b"\n")
    at, depth = random.randrange(len(lines)), random.choice((10, 400, 900, 3000, DEEP))
    lines[at] = random.choice(
        [
            b"(" * depth,
            b")" * depth,
            b"(S " * depth + b"(NN w)" + b")" * depth,
            b"(X (NN w) " * depth + b"(NN w)" + b")" * depth,
            b"(S " + b"(NN w)" * depth + b")",
            b"()",
            b"(S)",
            b"(S (NP) (VP))",
            b"(S ((NN a)) (NN b))",
            b"( (S (NN a)))",
            b"(NN a b c)",
            b"(S (-NONE- *T*))",
            b"(S (NN a)(. .))",
            b"(S word (NN a))",
            b"1\ta\ta",
            b"(" + b"S" * depth + b" (NN a) (NN b))",
        ]
    )
    return b"\n".join(lines)


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder, links as links."""
    shutil.copytree(source, target, symlinks=True)
    return target
