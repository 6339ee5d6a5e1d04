"""From a Numba function to machine code on disk, and to an address in this process.

Numba types and lowers the function once; LLVM compiles it for a `Target`, together with the tiles; the object file is kept in a
cache folder, so that later processes only load it and never import Numba. A file is named after a hash of all that it is made
of (sources, versions, machine, target) and carries its own checksum; it is written atomically.
"""

import ctypes
import hashlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import llvmlite.binding as llvm

from gatedrnn.core.errors import DataError
from gatedrnn.core.files import cache_folder, write_with
from gatedrnn.sequence.backends.cpu.compile import sources
from gatedrnn.sequence.backends.cpu.runtime.once import once
from gatedrnn.sequence.backends.cpu.runtime.target import Target

_LOADED: list[Any] = []  # engines live as long as the process
_UNKEPT: dict[tuple[str, str], bytes] = {}
"""By name and target: what no folder keeps, for this process; never stale, as it is made of the sources that were imported."""
_SUM_BYTES = 32
_TOLD = False
_NOWHERE = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value  # an address that is never called
EXTERNAL = ("tile", "strip", "configure", "keep", "restore", "forward_rows", "backward_rows")


def cached(name: str, target: Target, make: Callable[[], bytes]) -> bytes:
    """The object code called `name`: from the cache, or made and kept there.

    Where it cannot be kept, it serves this process, and is made again in the next.

    Raises: BackendError: it is to be made, and its sources are no longer those this process imported.
    """
    try:
        path = _path(name, target)
        code = _read(path)
    except DataError as error:
        path = code = None
        _not_kept(error)
    if code is None:
        key = name, str(target)
        code = _UNKEPT.pop(key, None)
        if code is None:
            sources.check()
            code = make()
            sources.check()
        if path is None or not _keep(path, code):
            _UNKEPT[key] = code
    return code


def _path(name: str, target: Target) -> Path:
    """Where it is kept. Raises: DataError: there is no cache folder."""
    versions = f"{sys.version_info[:2]} {version('numba')} {version('llvmlite')}"
    made_of = f"{name} {target} {llvm.get_process_triple()} {sys.maxsize} {versions} {sources.IMPORTED}"
    return cache_folder() / f"{name}-{target.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:24]}.o"


def _read(path: Path) -> bytes | None:
    """What is kept there, if it is whole."""
    try:
        content = path.read_bytes()
    except OSError:  # none; or it was removed or replaced just now, here or on another machine
        return None
    code = content[_SUM_BYTES:]
    return code if hashlib.sha256(code).digest() == content[:_SUM_BYTES] else None


def _keep(path: Path, code: bytes) -> bool:
    """Whether it could be written."""
    try:
        write_with(path, lambda file: file.write_bytes(hashlib.sha256(code).digest() + code))
    except (DataError, OSError) as error:
        _not_kept(error)
        return False
    return True


def _not_kept(error: Exception) -> None:
    """Say so, once."""
    global _TOLD
    if not _TOLD:
        _TOLD = True
        warnings.warn(
            f"gatedrnn: kernels cannot be kept, so every process compiles them again, which takes seconds: {error}",
            stacklevel=2,
        )


def load(codes: list[bytes], symbol: str, target: Target) -> int:
    """The address of `symbol` in object code made for `target`, linked together."""
    _initialise()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))
    for code in codes:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _LOADED.append(engine)
    return engine.get_function_address(symbol)


def compile_entry(function: Any, arguments: list[Any], target: Target, tiles: str) -> bytes:
    """Object code with `entry(void *)`, which reads `arguments`, 8 bytes each, from an array and calls `function`.

    Args:
        function: a plain Python function that Numba can type, returning nothing.
        arguments: its Numba types, addresses (`Ptr`) and int64 only.
        tiles: IR of functions that it calls by name.
    """
    name, text = _typed(function, arguments)
    module = llvm.parse_assembly(_retarget(text + _entry(name, arguments), target))
    module.link_in(llvm.parse_assembly(_retarget(tiles, target)))
    return _object(module, "entry", target)


def compile_named(name: str, function: Any, arguments: list[Any], target: Target) -> bytes:
    """Object code with `function` under a name, for other code that calls it as Numba does.

    Args: arguments: its Numba types.
    """
    own, text = _typed(function, arguments)
    module = llvm.parse_assembly(_retarget(text, target))
    module.get_function(own).name = name
    return _object(module, name, target)


def _typed(function: Any, arguments: list[Any]) -> tuple[str, str]:
    """Its name in IR, and the IR, not optimised."""
    from numba.core import types
    from numba.core.compiler import Flags, compile_extra
    from numba.core.registry import cpu_target

    from gatedrnn.sequence.backends.cpu.vector.simd import Pipeline

    typing: Any = cpu_target.typing_context
    context: Any = cpu_target.target_context
    typing.refresh()
    context.refresh()
    flags: Any = Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    for name in EXTERNAL:  # Numba also links for itself, what is never called
        if not llvm.address_of_symbol(name):
            llvm.add_symbol(name, 1)
    with _as_text(context):
        result = compile_extra(
            typing, context, function, tuple(arguments), types.void, flags, {}, None, cast(Any, Pipeline)
        )
        return result.fndesc.llvm_func_name, result.library.get_llvm_str()


def _object(module: Any, symbol: str, target: Target) -> bytes:
    """A module's object code, of which only `symbol` is seen from outside."""
    _initialise()
    machine = _machine(target)
    for item in module.functions:
        if not item.is_declaration and item.name != symbol:
            item.linkage = "internal"
    for item in module.global_variables:
        if not item.is_declaration:
            item.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(3)
    passes = llvm.create_pass_builder(machine, options)
    manager = passes.getModulePassManager()
    manager.run(module, passes)
    module.verify()
    return machine.emit_object(module)


@contextmanager
def _as_text(context: Any) -> Iterator[None]:
    """Let Numba neither optimise nor make machine code of each of our functions by itself, where nobody calls it: half the time.

    Nor write messages of what did not fit by means of colorama, where it is there: that takes a twentieth of the rest, and more.
    For a thread that holds Numba's lock. What is not ours, and a Numba that keeps such things elsewhere, goes on as always.
    """
    from numba.core import config, errors

    settings, messages = cast(Any, config), cast(Any, errors)
    try:
        from numba import _dynfunc  # type: ignore[attr-defined]

        made, level, none = _dynfunc.make_function, settings.OPT, settings._OptLevel(0)
        _ = context.codegen()._engine.add_module, context.codegen()._add_module
        colours = messages.termcolor()
    except (ImportError, AttributeError):
        yield
        return
    finish, codegen = context.get_executable, context.codegen()

    def get_executable(library: Any, fndesc: Any, env: Any) -> Any:
        module = fndesc.lookup_module()
        library._ensure_finalized()
        if not module.__name__.startswith("gatedrnn."):  # Numba's own min, which others may call
            codegen._engine.add_module(library._final_module)
            return finish(library, fndesc, env)
        return made(module, fndesc.qualname.split(".")[-1], "", _NOWHERE, env, (library,))

    context.get_executable, codegen._add_module, settings.OPT = get_executable, lambda module: None, none
    colours._markup = lambda message, *style: message
    try:
        yield
    finally:
        settings.OPT = level
        del context.get_executable, codegen._add_module, colours._markup


def _entry(name: str, arguments: list[Any]) -> str:
    """IR of `entry`: `name` is a Numba function, (ptr result, ptr exception, arguments…) → status."""
    lines = ["define void @entry(ptr %a) {", "  %r = alloca ptr", "  %e = alloca ptr"]
    passed = ["ptr %r", "ptr %e"]
    for k, kind in enumerate(arguments):
        spelled = "ptr" if hasattr(kind, "lanes") else "i64"
        lines += [f"  %p{k} = getelementptr i64, ptr %a, i64 {k}", f"  %v{k} = load {spelled}, ptr %p{k}"]
        passed.append(f"{spelled} %v{k}")
    lines += [f'  %s = call i32 @"{name}"({", ".join(passed)})', "  ret void", "}"]
    return "\n" + "\n".join(lines) + "\n"


def _retarget(text: str, target: Target) -> str:
    """IR without the lines that name another machine."""
    kept = [line for line in text.splitlines() if not line.startswith(("target triple", "target datalayout"))]
    triple = f'target triple = "{llvm.get_process_triple()}"'
    return "\n".join([triple, f'target datalayout = "{_machine(target).target_data}"', *kept])


@once
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@once
def _machine(target: Target) -> Any:
    native = llvm.Target.from_triple(llvm.get_process_triple())
    return native.create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, jit=True, codemodel="jitdefault"
    )
