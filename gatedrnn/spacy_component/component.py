"""The component: a run reads the sentences of documents, a batch of them at a time."""

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Optional, Union, final

import srsly
import torch
from spacy.language import Language
from spacy.pipeline import Pipe
from spacy.tokens import Doc, Span, Token
from spacy.util import minibatch

from gatedrnn.core.checks import one_of
from gatedrnn.core.checksums import CHECKSUMS_FILE
from gatedrnn.core.errors import ArgumentError, DataError, GatedRNNError
from gatedrnn.core.files import write_folder
from gatedrnn.core.forks import at_fork
from gatedrnn.data import MAPPINGS, Aligned, align_words
from gatedrnn.models.saving import holds_trained
from gatedrnn.spacy_component.constituents import LABEL, add_extensions
from gatedrnn.studies.parsing import GATES, Layer, has_distances, layer_named, parse_sentences
from gatedrnn.studies.parsing import surprisal_records as read
from gatedrnn.training.run import LISTED, METRICS_FILE, Run, load_run, without_paths, write_trained
from gatedrnn.trees import ALGORITHMS

NAME = "gatedrnn"
_ASSIGNS = [f"token._.{name}" for name in ("surprisal", "distance")]
_ASSIGNS += [f"span._.{name}" for name in ("parse_string", "constituents", "labels")]

# nlp.pipe(n_process=2): PyTorch's threads do not survive a fork
at_fork(after_in_child=lambda: torch.set_num_threads(1))


@Language.factory(
    NAME,
    default_config={"layer": None, "gate": None, "algorithm": "unbiased", "mapping": None},
    assigns=_ASSIGNS,
    requires=["doc.sents"],
)
def make(
    nlp: Language,
    name: str,
    run: str,
    layer: Optional[Union[int, str]],  # noqa: UP007, UP045 - spaCy reads the types of a factory
    gate: str | None,
    algorithm: str,
    mapping: Optional[str],  # noqa: UP045 - likewise
) -> "Component":
    """The component of a pipeline; arguments as in `Component`."""
    return Component(name, run, layer=layer, gate=gate, algorithm=algorithm, mapping=mapping)


@final
class Component(Pipe):
    """Sets `token._.surprisal` and `token._.distance`; trees are read off the distances.

    Args:
        name: in the pipeline.
        run: folder of a trained run of language modelling; one that is not there or is damaged is read again when a document
            comes, since a pipeline that is loaded from a disk brings its own.
        layer, gate, algorithm: as of `gatedrnn parse`.
        mapping: how words are looked up; None for what the commands do: as written for `surprisal`, by the run's rule for trees.

    Raises: ArgumentError: an unknown choice, or a layer where the cell has no master gates.
    """

    def __init__(
        self,
        name: str,
        run: str,
        *,
        layer: Layer | None = None,
        gate: str | None = None,
        algorithm: str = "unbiased",
        mapping: str | None = None,
    ) -> None:
        if gate is not None:
            one_of(f"{NAME}.gate", gate, GATES)
        one_of(f"{NAME}.algorithm", algorithm, ALGORITHMS)
        if mapping is not None:
            one_of(f"{NAME}.mapping", mapping, MAPPINGS)
        self.name, self.folder = name, run
        self.layer = layer_named(layer) if isinstance(layer, str) else layer
        self.gate, self.algorithm, self.mapping = gate, algorithm, mapping
        self._run: Run | None = None
        add_extensions()
        if run and (found := _readable(run)) is not None:
            self._take(found)

    @property
    def run(self) -> Run:
        """The run. Raises: as `load_run`, where its folder is not there or damaged."""
        return self._run or self._take(load_run(self.folder))

    def __call__(self, doc: Doc) -> Doc:
        """Read one document. Raises: ArgumentError: sentences have no boundaries."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Read documents, a batch in one call of the model."""
        for docs in minibatch(stream, batch_size):
            docs = list(docs)
            try:
                self._annotate(docs)
            except Exception as error:  # whose handler decides
                self.get_error_handler()(self.name, self, docs, error)
            else:
                yield from docs

    def to_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> None:
        """Write the run, without its checkpoints, log and paths; an earlier one that it wrote is replaced.

        Raises: DataError: something else is there, such as the folder of a training; it cannot be written.
        """
        path, run = Path(path), self.run

        def fill(place: Path) -> None:
            write_trained(place, without_paths(run.config), run.model, run.vocabulary)

        fresh, before = (path.with_name(f".{path.name}.{state}") for state in ("fresh", "before"))
        if not path.is_dir() or not any(path.iterdir()):
            write_folder(path, fill)
            for left in (fresh, before):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            return
        if not _wrote(path):
            rule = "must be a new or empty folder, or one that an earlier pipeline wrote"
            raise DataError(str(path), rule, "one with other files", "Choose another folder")
        for left in (fresh, before):
            shutil.rmtree(left, ignore_errors=True)
        write_folder(fresh, fill)
        path.replace(before)  # killed here, `from_disk` finds it
        fresh.replace(path)
        shutil.rmtree(before)

    def from_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> "Component":
        """Read what `to_disk` wrote; the folder before, if it was killed between the two. Raises: as `load_run`."""
        before = Path(path).with_name(f".{Path(path).name}.before")
        self._take(load_run(before if before.is_dir() and not Path(path).exists() else path))
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """The files of `to_disk`."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            self.to_disk(place)
            return srsly.msgpack_dumps({path.name: path.read_bytes() for path in place.iterdir()})

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> "Component":
        """Read what `to_bytes` gave. Raises: as `load_run`; DataError: these are other bytes."""
        files = _files(data)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / Path(name).name).write_bytes(content)
            return self.from_disk(folder)

    def __reduce__(self) -> tuple[Callable[..., "Component"], tuple[Any, ...]]:
        how = {"layer": self.layer, "gate": self.gate, "algorithm": self.algorithm, "mapping": self.mapping}
        return _remade, (self.name, self.folder, how, self.to_bytes())

    def _take(self, run: Run) -> Run:
        if self.layer is not None and not has_distances(run.model):
            got = f"cell {run.config.model.cell!r}"
            raise ArgumentError(f"{NAME}.layer", "needs a cell with master gates", got, "Leave layer out")
        self._run = run
        return run

    def _annotate(self, docs: list[Doc]) -> None:
        """Set what the run says of documents."""
        sentences = [list(sentence) for doc in docs for sentence in _sentences(doc)]
        run, trees = self.run, self._why_no_trees()
        lines = (self._aligned(sentence) for sentence in sentences)
        records = read(run.model, run.vocabulary, lines, layer=self.layer, gate=self.gate)
        for tokens, record in zip(sentences, records, strict=True):
            rows = (record[name][:-1] for name in ("tokens", "surprisal_bits", "distances"))
            for token, pieces, bits, distance in zip(tokens, *rows, strict=True):
                token._.surprisal = bits if pieces or not token.is_space else None
                token._.distance = distance
        if not trees:
            self._set_distances(sentences)
        for doc in docs:
            doc._.gatedrnn = {"algorithm": self.algorithm, "label": LABEL, "why_no_trees": trees}

    def _aligned(self, sentence: list[Token]) -> Aligned:
        """Its words and the run's tokens."""
        words, spaces = [token.text for token in sentence], [bool(token.whitespace_) for token in sentence]
        return align_words(self.run.vocabulary, words, spaces, self.mapping or "exact")

    def _set_distances(self, sentences: list[list[Token]]) -> None:
        """Distances as `parse` reads them."""
        run = self.run
        seen = [tokens for sentence in sentences if (tokens := [token for token in sentence if not token.is_space])]
        how: dict[str, Any] = {"layer": self.layer, "gate": self.gate, "algorithm": self.algorithm}
        how["mapping"] = self.mapping or run.config.data.mapping
        parses = parse_sentences(run.model, run.vocabulary, ([t.text for t in tokens] for tokens in seen), **how)
        for tokens, parsed in zip(seen, parses, strict=True):
            for token, distance in zip(tokens, parsed.distances, strict=True):
                token._.distance = distance

    def _why_no_trees(self) -> str:
        """What a tree needs and the run lacks; nothing if there are trees."""
        run = self.run
        if not has_distances(run.model):
            return f"a run of a cell with master gates; got {run.config.model.cell}"
        words = run.vocabulary
        if not words.cuts_words:
            return ""
        return f"a run of words; got {f'level {words.level}' if words.level != 'word' else 'one of characters'}"


def _readable(folder: str) -> Run | None:
    """The run, or None where it cannot be read: `from_disk` may bring another one, and `Component.run` raises if it does not."""
    try:
        return load_run(folder)
    except GatedRNNError as error:
        if Path(folder).exists():
            warnings.warn(f"{NAME}: {error} It is read again when a document comes.", stacklevel=2)
        return None


def _wrote(path: Path) -> bool:
    """Whether `to_disk` wrote this folder: a training has checkpoints too, or a log that is not empty."""
    names, log = {file.name for file in path.iterdir()}, path / METRICS_FILE
    known = names <= {*LISTED, METRICS_FILE, CHECKSUMS_FILE}
    return known and holds_trained(path) and log.is_file() and not log.stat().st_size


def _files(data: bytes) -> dict[str, bytes]:
    """Contents by name. Raises: DataError: `to_bytes` did not write this."""
    try:
        files: Any = srsly.msgpack_loads(data)
    except (ValueError, TypeError):
        files = None
    if not isinstance(files, dict) or not all(isinstance(content, bytes) for content in files.values()):
        got = f"{len(data)} other bytes"
        raise DataError(f"{NAME}.from_bytes", "must get what to_bytes gave", got, "Save it again")
    return files


def _remade(name: str, folder: str, how: dict[str, Any], data: bytes) -> Component:
    """A component out of its parts, without a look at the folder."""
    made = Component(name, "", **how)
    made.folder = folder
    return made.from_bytes(data)


def _sentences(doc: Doc) -> Iterator[Span]:
    """Raises: ArgumentError: a document has no boundaries of sentences."""
    if not len(doc):
        return iter(())
    if not doc.has_annotation("SENT_START"):
        advice = 'Add one before it: nlp.add_pipe("sentencizer"), or a parser'
        raise ArgumentError(NAME, "needs sentence boundaries", repr(doc.text[:30]), advice)
    return doc.sents
