"""Triton's interpreter without what it repeats: it takes half of its time, and no result depends on it."""

import functools
import inspect
from typing import Any


def quicken() -> None:
    """Let the interpreter prepare Triton's language once a launch, not again for every function that a kernel calls.

    A kernel's launch replaces functions of `triton.language`, and undoes it at its end. A function that the kernel calls
    replaces the same ones by the same again. A Triton whose interpreter has other names stays as it is.
    """
    from triton.runtime import interpreter

    module: Any = interpreter
    names = ("_patch_lang", "GridExecutor", "InterpretedFunction", "tl")
    if not all(hasattr(module, name) for name in names):
        return
    patch, launch = module._patch_lang, module.GridExecutor.__call__
    done: list[set[int]] = []  # of each launch that runs, the modules that were prepared

    def once(function: Any) -> Any:
        """What the interpreter calls for a kernel, whose result it keeps, and for a function, whose result it does not."""
        wanted = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
        wanted &= {id(module.tl), id(module.tl.core)}
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
