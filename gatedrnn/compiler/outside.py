"""What a step reads beside its arguments: it is traced once, so what may change unseen must not be in it."""

import builtins
import dis
import hashlib
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gatedrnn.cells.spec import Cell, Extra, Gate, Spec
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.core.origin import module_of
from gatedrnn.gates import Gates

_CONSTANT = (int, float, complex, str, bytes, type(None))
_FROZEN = (Cell, Spec, Gate, Extra, Gates)
_TRUSTED = ("torch", "gatedrnn", "math", "numpy", "typing", "builtins", "collections")
_MODES = (
    "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "get_default_dtype", "is_compiling", "get_num_threads",
    "get_num_interop_threads", "are_deterministic_algorithms_enabled", "get_deterministic_debug_mode", "initial_seed",
    "get_rng_state", "get_float32_matmul_precision", "device_count", "current_device", "is_available", "random",
    "is_dynamo_compiling", "compile",
)  # fmt: skip
"""Functions of PyTorch that tell of a call (what tensors tell, `asked` sees), modules of random numbers, and torch.compile."""
_LOOK_UP = frozenset(("globals", "locals", "vars", "eval", "exec", "open"))
"""Of Python's own functions, those that read anything."""
_TABLES = frozenset(("CELLS", "SQUASHES"))
"""Of the package's own, what others may enter something into."""
_RANDOM = ("numpy.random", "torch.random")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_WITHOUT_STATE = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)


def fingerprint(step: Callable[..., Any], lines: bool = False) -> str:
    """All that decides on what a step computes, as text: its code and what that reads.

    Args: lines: with the lines in which its code stands, which only messages depend on.

    Raises: UnsupportedError: it reads what may change, an object, or a global constant whose name is not in capitals.
    """
    parts: list[str] = []
    _collect(step, set(), parts, lines)
    return "\n".join(parts)


def place(step: Callable[..., Any], name: str = "") -> str:
    """Its file and the lines in which it reads `name`, or that in which it begins: " (file.py:12, 14)"."""
    code = getattr(step, "__code__", None)
    if code is None:
        return ""
    named = [each for part in _codes(code) for each in dis.get_instructions(part) if name and each.argval == name]
    read = [each for each in named if each.opname in _GLOBAL] or named  # an attribute may have the same name
    lines = {each.positions.lineno for each in read if each.positions and each.positions.lineno}
    return f" ({Path(code.co_filename).name}:{', '.join(map(str, sorted(lines or {code.co_firstlineno})))})"


def mark(step: Callable[..., Any]) -> str:
    """What tells an equation from another of that name; "#" if it reads what may change or is not set, "" for our own."""
    if _module(step) == __name__.partition(".")[0]:
        return ""
    try:
        return "#" + hashlib.sha256(fingerprint(step).encode()).hexdigest()[:16]
    except UnsupportedError:  # then it has no kernels
        return "#"


def _collect(function: Any, seen: set[int], parts: list[str], lines: bool) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    if not isinstance(function, types.FunctionType):
        raise UnsupportedError(f"a {type(function).__name__} instead of a function")
    if odd := function.__dict__.keys() - {"__wrapped__"}:
        where = place(function, min(odd))
        raise UnsupportedError(f"{function.__name__}.{min(odd)}, an attribute of a function, which may change{where}")
    for code in _codes(function.__code__):
        if name := next((each for each in _MODES if each in code.co_names), None):
            raise UnsupportedError(f"{name}, which may change{place(function, name)}")
        if names := _names(code) & _LOOK_UP - function.__globals__.keys():
            raise UnsupportedError(f"{min(names)}, which may change{place(function, min(names))}")
        if names := _TABLES.intersection(code.co_names) - _names(code):  # attributes of a module
            raise UnsupportedError(f"{min(names)}, which may change{place(function, min(names))}")
        if line := _decides_by_device(code):
            where = f"{Path(code.co_filename).name}:{line}"
            raise UnsupportedError(f"a device that is more than an argument of a call, which may change ({where})")
        for each in dis.get_instructions(code):
            if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise UnsupportedError(f"{each.argval}, which it sets outside of it{place(function, each.argval)}")
            if each.opname == "IMPORT_NAME" and str(each.argval).split(".")[0] not in _TRUSTED:
                where = place(function, each.argval)
                raise UnsupportedError(f"the import of {each.argval} inside it, which may change{where}")
        parts.append(_code(code))
        if lines:
            parts.append(f"{Path(code.co_filename).name} {code.co_firstlineno} {code.co_linetable.hex()}")
    for name, value, constant in _read(function):
        if isinstance(value, types.FunctionType):
            parts.append(f"{name} {value.__module__}.{value.__qualname__}")
            _collect_own(value, seen, parts, lines)
        elif isinstance(value, types.ModuleType) and value.__name__.startswith(_RANDOM):
            raise UnsupportedError(f"{name}, which may change{place(function, name)}")
        elif not _fixed(value) or not (
            constant or name.isupper() or not isinstance(value, (*_CONSTANT, tuple, frozenset))
        ):
            raise UnsupportedError(f"{name}, read from outside, which may change{place(function, name)}")
        else:
            parts.append(f"{name} {_text(value)}")
            if isinstance(value, Cell):  # whose equation the step may call
                for each in (value.step, value.make_spec):
                    _collect_own(each, seen, parts, lines)


def _collect_own(function: Any, seen: set[int], parts: list[str], lines: bool) -> None:
    if _module(function) not in _TRUSTED:
        _collect(function, seen, parts, lines)


def _decides_by_device(code: types.CodeType) -> int | None:
    """The line in which a tensor's device is more than an argument of a call: it is compared, asked for its type, or printed.

    What is traced are tensors on the CPU, whose attribute PyTorch shows to no mode.
    """
    instructions, kept = list(dis.get_instructions(code)), set[str]()
    if "getattr" in code.co_names and "device" in code.co_consts:
        return code.co_firstlineno
    for _ in instructions:  # as often as another variable holds a device
        known = len(kept)
        for k, each in enumerate(instructions):
            for above in _devices(each, kept):
                user = _user(instructions[k + 1 :], above)
                if user is not None and user.opname.startswith("STORE_FAST"):
                    kept.update(user.argval if isinstance(user.argval, tuple) else (user.argval,))
                elif user is None or not user.opname.startswith(_TAKING) or _AS_TEXT.intersection(code.co_names):
                    return (each.positions and each.positions.lineno) or code.co_firstlineno
        if len(kept) == known:
            break
    return None


_TAKING = "CALL", "PRECALL", "BUILD_MAP", "BUILD_CONST_KEY_MAP"
_SKIPPED = ("KW_NAMES", "NOP", "CACHE", "EXTENDED_ARG")
_AS_TEXT = frozenset(("str", "repr", "format", "hash"))


def _devices(each: dis.Instruction, kept: set[str]) -> list[int]:
    """How many values lie on the stack above each device that an instruction puts there.

    Args: kept: variables that hold devices.
    """
    if each.opname == "LOAD_ATTR":  # that of a method is PyTorch's function torch.device
        return [0] if each.argval == "device" and "NULL" not in each.argrepr else []
    if not each.opname.startswith("LOAD_FAST"):
        return []
    names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
    return [len(names) - 1 - k for k, name in enumerate(names) if name in kept]


def _user(instructions: list[dis.Instruction], above: int) -> dis.Instruction | None:
    """The instruction that takes a value off the stack, above which so many others lie."""
    for each in instructions:
        if each.opname in _SKIPPED:
            continue
        if not above and each.opname in ("LOAD_ATTR", "LOAD_METHOD", "COPY"):
            return each
        above += dis.stack_effect(each.opcode, each.arg if each.opcode >= dis.HAVE_ARGUMENT else None)
        if above <= 0:
            return each
    return None


def _code(code: types.CodeType) -> str:
    constants = [_text(each) for each in code.co_consts if not isinstance(each, types.CodeType)]
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {counts} {names} {constants}"


def _text(value: Any) -> str:
    """The same in every process."""
    if isinstance(value, frozenset):
        return str(sorted(map(_text, value)))
    if isinstance(value, tuple):
        return str([_text(each) for each in value])
    if isinstance(value, Cell):
        functions = f"{value.make_spec.__qualname__} {value.step.__qualname__}"
        return f"{value.name} {functions} {value.options} {value.gates} {value.advised}"
    if isinstance(value, Spec):
        return value.text()
    if type(value) is int:
        return hex(value)  # of any size
    if isinstance(value, Gate):  # which can be called
        return repr(value)
    if isinstance(value, types.ModuleType) or callable(value):
        return f"{getattr(value, '__module__', '')} {getattr(value, '__qualname__', type(value).__name__)}"
    return repr(value)


def _fixed(value: Any) -> bool:
    if type(value).__flags__ & _MADE_IN_PYTHON and type(value).__module__ == "builtins":  # by `exec` without a name
        return False
    if _module(type(value)) not in _TRUSTED:  # attributes of a user's class may follow from more than its value
        return False
    if isinstance(value, tuple | frozenset):
        return all(map(_fixed, value))
    if isinstance(value, Spec):
        return _fixed(value.gates) and _fixed(value.extras)
    if isinstance(value, _WITHOUT_STATE) or type(value).__module__ == "torch._ops":
        return _module(value) in _TRUSTED
    return isinstance(value, _CONSTANT) or type(value) in _FROZEN


def _module(value: Any) -> str:
    """The package that it is from, or is."""
    return (value.__name__ if isinstance(value, types.ModuleType) else module_of(value)).partition(".")[0]


def _read(function: types.FunctionType) -> Iterator[tuple[str, Any, bool]]:
    """Name and value of each thing from outside, and whether only the function's own maker can change it."""
    try:
        given = inspect.getclosurevars(function)
    except ValueError as error:
        raise UnsupportedError(f"a variable from outside that is not set yet{place(function)}") from error
    for name, value in given.nonlocals.items():
        yield name, value, True
    for value in function.__defaults__ or ():
        yield "a default", value, True
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"the default {name}", value, True
    for code in _codes(function.__code__):
        for name in sorted(_names(code) - {"__name__"}):
            if name in function.__globals__:
                yield name, function.__globals__[name], False
            elif not hasattr(builtins, name):
                raise UnsupportedError(f"{name}, a variable from outside that is not set yet{place(function, name)}")


def _names(code: types.CodeType) -> set[str]:
    """The names that it reads from the file, or from Python's own; attributes are none."""
    return {each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
