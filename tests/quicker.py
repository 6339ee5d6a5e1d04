"""What libraries do again and again, done once, where no result depends on it: it takes a third of their tests' time."""

import functools
import inspect
from typing import Any


def quicken_triton() -> None:
    """Let Triton's interpreter prepare Triton's language once a launch, not again for every function that a kernel calls.

    A kernel's launch replaces functions of `triton.language`, and undoes it at its end. A function that the kernel calls
    replaces the same ones by the same again. NumPy's types are looked up once. That sums of indices stay below 2³¹, which the
    interpreter computes for every one of them, no size of these tests comes near to. A Triton whose interpreter has other
    names stays as it is.
    """
    from triton.runtime import interpreter

    module: Any = interpreter
    names = "_patch_lang", "GridExecutor", "InterpretedFunction", "tl", "_get_np_dtype", "interpreter_builder"
    if not all(hasattr(module, name) for name in names) or not hasattr(module.interpreter_builder, "options"):
        return
    kinds, kind_of = {}, module._get_np_dtype
    module._get_np_dtype = lambda kind: kinds.get(kind.scalar.name) or kinds.setdefault(kind.scalar.name, kind_of(kind))
    object.__setattr__(module.interpreter_builder.options, "sanitize_overflow", False)
    patch, launch = module._patch_lang, module.GridExecutor.__call__
    done: list[set[int]] = []  # of each launch that runs, the modules that were prepared

    @functools.cache
    def used(function: Any) -> frozenset[int]:
        found = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
        return frozenset(found & {id(module.tl), id(module.tl.core)})

    def once(function: Any) -> Any:
        """What the interpreter calls for a kernel, whose result it keeps, and for a function, whose result it does not."""
        wanted = used(function)
        if done and wanted <= done[-1]:
            return None
        if done:
            done[-1] |= wanted
        return patch(function)

    @functools.wraps(launch)
    def launched(*arguments: Any, **options: Any) -> Any:
        done.append(set())
        try:
            return launch(*arguments, **options)
        finally:
            done.pop()

    module._patch_lang, module.GridExecutor.__call__ = once, launched


def quicken_onnx() -> None:
    """Let PyTorch's exporter look through the operators that ONNX has once, not again for every graph.

    Each export still gets a table of its own. A PyTorch whose exporter has other names stays as it is.
    """
    try:
        from torch.onnx._internal.exporter import _registration as module

        kind: Any = module.ONNXRegistry
        made = kind.from_torchlib
    except (ImportError, AttributeError):
        return
    if not hasattr(kind(), "functions") or hasattr(kind, "kept"):
        return
    kind.kept = functools.cache(lambda version: made(version))

    def from_torchlib(cls: Any, opset_version: int = module._constants.TORCHLIB_OPSET) -> Any:
        table = cls()
        vars(table).update(vars(cls.kept(opset_version)))
        table.functions = {target: list(found) for target, found in table.functions.items()}
        return table

    kind.from_torchlib = classmethod(from_torchlib)
