"""ONNX files by PyTorch's exporter, checked beside the module before they are kept.

Dimensions: T time, B batch, S source.
"""

import logging
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from gatedrnn.core.errors import ArgumentError, first_line
from gatedrnn.core.files import write_folder
from gatedrnn.core.forks import at_fork
from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.export.checking import check, values
from gatedrnn.export.graphs import Graph, graphs_of
from gatedrnn.export.standard import TRANSLATIONS
from gatedrnn.tasks import TASKS
from gatedrnn.training.run import Run

OPSET = 20
LARGEST_BYTES = 2**31 - 1
"""Of a file of ONNX, by its format."""
_OPERATORS, _INT8_OPERATORS = ("LSTM", "GRU", "RNN"), ("LSTM",)
"""Operators of cells, and those with an int8 form; the other cells run as a Scan, whose products have one."""
_EVERY_SIZE = 2**40  # elements: constants of any size are computed once, in the export
_ONE_EXPORT = threading.Lock()
"""PyTorch's exporter keeps what it traces in global variables: threads take turns."""


def _free_again() -> None:
    """In a forked child, where the thread that exports does not go on."""
    global _ONE_EXPORT
    _ONE_EXPORT = threading.Lock()


at_fork(after_in_child=_free_again)


def onnx(
    module: nn.Module,
    folder: Path | str,
    *,
    int8: bool = False,
    only: Collection[str] = (),
    beside: Sequence[Path | str] = (),
) -> dict[str, Path]:
    """Write a layer's or a model's graphs into a folder, whole or not at all.

    Args:
        module: a layer, `LanguageModel`, `TranslationModel` or `PairClassifier` with float32 weights; it is not changed. Its
            evaluation mode is exported, and weights compressed by gatedrnn as dense ones.
        folder: new or empty.
        int8: store weights as int8: about a quarter of the bytes, with a small error.
        only: names of the graphs to write, or one name; all if empty.
        beside: files to copy into the folder, those that exist.

    Returns: the file of each graph: `sequence` and `step`; `encoder` and `step` of a translation model; `sequence` alone of a
        pair classifier and of a bidirectional layer.
    Raises: ArgumentError: the module cannot be exported, or a library is missing. DataError: the folder cannot be written.
        GatedRNNError: a graph differs from the module, by more than 1e-5 (or what rounding makes in the module itself) or, with
            int8, by more than 25 % in root mean square.
    """
    require()
    folder = Path(folder)
    graphs = _chosen(graphs_of(module, _INT8_OPERATORS if int8 else _OPERATORS), only)

    def fill(place: Path) -> None:
        for graph in graphs:
            model = _exported(graph, int8)
            (place / f"{graph.name}.onnx").write_bytes(model.SerializeToString())
        for path in map(Path, beside):
            if path.is_file():
                (place / path.name).write_bytes(path.read_bytes())

    with _ONE_EXPORT, torch.device("cpu"), torch.autocast("cpu", enabled=False):
        write_folder(folder, fill)
    return {graph.name: folder / f"{graph.name}.onnx" for graph in graphs}


def export_run(run: Run, folder: Path, int8: bool = False) -> None:
    """As `onnx`, of a run of any task, with its vocabularies beside the graphs."""
    onnx(run.model, folder, int8=int8, beside=[run.folder / name for name in TASKS[run.config.task].files])


def _chosen(graphs: list[Graph], only: Collection[str]) -> list[Graph]:
    """The graphs to write. Raises: ArgumentError: the module has no graph of such a name."""
    wanted, known = {only} if isinstance(only, str) else set(only), [graph.name for graph in graphs]
    absent = sorted(wanted.difference(known), key=str)
    if absent:
        rule = f"must name graphs of the module: {', '.join(known)}"
        raise ArgumentError("export.onnx only", rule, repr(absent[0]), "Leave `only` out to write all of them")
    return [graph for graph in graphs if not wanted or graph.name in wanted]


def _exported(graph: Graph, int8: bool) -> Any:
    """A graph as an ONNX model that agrees with its module. Raises: ArgumentError, GatedRNNError: as `onnx`."""
    with torch.no_grad(), _quiet():
        model = _translated(graph, _traced(graph))
        size = model.ByteSize()
        if size > LARGEST_BYTES:
            got, advice = f"{size:,} bytes in {graph.name}.onnx", "Export a smaller model"
            raise ArgumentError("export.onnx", "writes files of at most 2 GB", got, advice)
        _strip(model.graph, _size_names(model.graph, graph))
        check(graph, model, False)
        if int8:
            model = quantised(model)
            check(graph, model, True)
    return model


def quantised(model: Any) -> Any:
    """A copy of a float32 graph whose embeddings, products and LSTMs have int8 weights; biases stay float32.

    Weights take 7 of the 8 bits: sums of 16-bit pairs overflow on CPUs without VNNI otherwise.
    """
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    with TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            model, path, op_types_to_quantize=["LSTM", "MatMul", "Gather"], reduce_range=True,
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )  # fmt: skip
        return onnx.load(path)


def _traced(graph: Graph) -> torch.export.ExportedProgram:
    """Raises: ArgumentError: PyTorch cannot trace it, for example a cell of the user's that branches on values."""
    free = {name: torch.export.Dim(name, min=1) for name in ("T", "B", "S")}
    given = tuple(values(graph.inputs, {"T": 5, "B": 3, "S": 4}, 0))
    shapes = tuple({k: free[size] for k, size in enumerate(each.sizes) if size in free} for each in graph.inputs)
    try:
        return torch.export.export(graph.module, given, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # PyTorch raises many
        rule, advice = "needs modules that torch.export can trace", "Write step() without branches on values"
        raise ArgumentError(f"export.onnx {graph.name}", rule, first_line(error), advice) from error


def _translated(graph: Graph, program: torch.export.ExportedProgram) -> Any:
    """The program as an ONNX model, its constants computed.

    Raises: ArgumentError: ONNX does not have an operation, for example of a cell of the user's.
    """
    from onnxscript.optimizer import optimize

    given = values(graph.inputs, {"T": 2, "B": 2, "S": 2}, 0)
    try:
        found: Any = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, verbose=False, optimize=False,
            input_names=[i.name for i in graph.inputs], output_names=list(graph.truth(*given)),
            custom_translation_table=TRANSLATIONS,
        )  # fmt: skip
    except torch.onnx.errors.OnnxExporterError as error:
        rule, advice = "needs operations that ONNX has", "Write step() with other operations"
        raise ArgumentError(f"export.onnx {graph.name}", rule, _cause(error), advice) from error
    optimize(found.model, input_size_limit=_EVERY_SIZE, output_size_limit=_EVERY_SIZE)  # in place
    return found.model_proto


def _cause(error: BaseException) -> str:
    """The first line of the error that another one came from, and that one from: it names the operation."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _size_names(made: Any, graph: Graph) -> dict[str, str]:
    """Our name of each dynamic size, such as B, by the exporter's."""
    found = dict[str, str]()
    for given, wanted in zip(made.input, graph.inputs, strict=True):
        for size, ours in zip(given.type.tensor_type.shape.dim, wanted.sizes, strict=True):
            if isinstance(ours, str):
                found[size.dim_param] = ours
    return found


def _strip(graph: Any, sizes: dict[str, str]) -> None:
    """Leave out where in our files each node comes from, and constants that nothing reads; name sizes as we do."""
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (*graph.value_info, *graph.input, *graph.output):
        for size in part.type.tensor_type.shape.dim:
            if size.dim_param in sizes:
                size.dim_param = sizes[size.dim_param]
    for inner in _inner(graph):
        _strip(inner, sizes)
    read = _read(graph)
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read:
            del graph.initializer[place]


def _inner(graph: Any) -> list[Any]:
    """Bodies of its loops."""
    return [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]


def _read(graph: Any) -> set[str]:
    """Names of what its nodes and those of its loops read, and of its outputs."""
    own = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    return own.union(*map(_read, _inner(graph)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the libraries log and print, warnings and whole programs where one cannot be traced."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def require() -> None:
    """Raises: ArgumentError: a library is missing, or PyTorch is too old."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        advice = "Install them: pip install 'gatedrnn[onnx]'"
        raise ArgumentError("export.onnx", "needs onnx, onnxscript and onnxruntime", f"no {missing[0]}", advice)
    if scan is None:
        rule, advice = f"needs PyTorch {SCAN_SINCE} or later", "Install it: pip install -U torch"
        raise ArgumentError("export.onnx", rule, torch.__version__, advice)
