"""A model on disk: `config.yaml`, `model.safetensors` and their checksums; nothing is unpickled, nothing is half written."""

import json
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gatedrnn.core.checksums import accept, check, write_listed
from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.core.files import check_readable, exists, read_yaml, yaml_text
from gatedrnn.models.own_cells import check_equations, equations, written
from gatedrnn.weights.compressed import CompressedWeight, as_dense, compressed, gather, stored_parts

CONFIG_FILE = "config.yaml"
WEIGHTS_FILE = "model.safetensors"
VOCABULARY_FILE = "vocabulary.json"
_BESIDE = (CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE, "tokenizer.json")
_UNTRAINED, _EQUATIONS = {"trained": "no"}, "equations"
"""Notes in `model.safetensors`."""


class PretrainedModel(nn.Module):
    """A model of a configuration, which a folder can hold: `config.yaml` (section model) and `model.safetensors`.

    Attributes: config: what it is made of; kind: its class; shared: parameters that are another one: name → whose, stored once;
        vocabulary: a `Vocabulary` that goes with it, or None; read_vocabulary: reads one, set by the package.
    """

    kind: ClassVar[type]
    read_vocabulary: ClassVar[Callable[[Path], Any]]
    config: Any
    vocabulary: Any = None

    @property
    def shared(self) -> dict[str, str]:
        """None, unless a model says so."""
        return {}

    def own_state_dict(self) -> dict[str, Tensor]:
        """The state dict without what is shared."""
        return {name: value for name, value in self.state_dict().items() if name not in self.shared}

    def tie_weights(self) -> None:
        """Make what is shared one parameter again, where `to_empty`, or a change of all parameters, has made two of it."""
        for name, kept in self.shared.items():
            _put_parameter(self, name, self.get_parameter(kept))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As PyTorch's; with `assign=True`, what is shared stays one parameter."""
        result = super().load_state_dict(state_dict, strict, assign)
        if assign:
            for name, kept in self.shared.items():
                if name in state_dict and kept not in state_dict:
                    _put_parameter(self, kept, self.get_parameter(name))
            self.tie_weights()
        return result

    def expand(self) -> Self:
        """Make compressed weights dense, in place, so that they can be trained; returns the model."""
        for name, value in self.own_state_dict().items():
            if compressed(value):
                put_weight(self, name, as_dense(value))
        return self

    def save_pretrained(self, folder: Path | str, vocabulary: Any = None) -> None:
        """Write both files into `folder`, each atomically, and the vocabulary beside them.

        Args: vocabulary: a `Vocabulary` of the model's size, which becomes the model's own [its own, if it has one].
        Raises: ArgumentError: the vocabulary is of another size, or weights are not those that the configuration makes, such as
            pruned ones. DataError: the folder holds a run, or a vocabulary where the model has none; a file cannot be written.
            ConfigError: its `config.yaml` cannot be read.
        """
        kept = self.vocabulary if vocabulary is None else vocabulary
        size = getattr(self.config, "vocabulary_size", None)
        if kept is not None and len(kept) != size:
            got = f"{len(kept)} tokens and model.vocabulary_size={size}"
            advice = "Give the vocabulary that the model was made for"
            raise ArgumentError("save_pretrained.vocabulary", "must be of the model's size", got, advice)
        self._check_weights()
        _check_place(Path(folder), kept)
        self.vocabulary = kept
        save_config(folder, {"model": to_dict(self.config)})
        save_weights(folder, self)
        if kept is not None:
            kept.save(Path(folder) / VOCABULARY_FILE)
            accept(Path(folder), _BESIDE)

    def _check_weights(self) -> None:
        """Raises: ArgumentError: they are not those that the configuration makes, by name, shape and what is shared."""
        made: Any = type(self)
        own = {name: value.shape for name, value in self.state_dict().items()}
        try:
            with torch.device("meta"), _Undrawn():
                expected = {name: value.shape for name, value in made(self.config, "auto").state_dict().items()}
        except Exception:  # a cell of one's own may need numbers to be built
            expected = own
        odd = sorted(name for name in own.keys() | expected.keys() if own.get(name) != expected.get(name))
        if odd:
            was, now = (
                "none" if found is None else str(list(found)) for found in (expected.get(odd[0]), own.get(odd[0]))
            )
            rule = f"must be as the configuration makes it, {was}"
            advice = "Undo it first, as by prune.remove or parametrize.remove_parametrizations"
            raise ArgumentError(f"{made.__name__}.{odd[0]}", rule, now, advice)
        found = dict(self.named_parameters(remove_duplicate=False))
        for name, kept in self.shared.items():
            if found.get(name) is not found.get(kept):
                owner, advice = f"{made.__name__}.{name}", "Call tie_weights(), which makes them one again"
                raise ArgumentError(owner, f"must be the parameter {kept}", "another one", advice)

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, backend: str = "auto", vocabulary: Any = None) -> Self:
        """Read a folder written by `save_pretrained` or a run's folder, in evaluation mode.

        Args: vocabulary: the folder's, if it has been read already [`vocabulary.json`, if there is one].
        Returns: the model; `model.vocabulary` is None if the folder holds none.
        Raises: CheckpointError: a file is missing, damaged or of another size. ConfigError: no YAML.
            ArgumentError: a value in it is out of range. DataError: a damaged vocabulary.
        """
        model: Any = cls
        model = model(read_config(folder, cls.kind), backend)
        load_weights(folder, model)
        model.vocabulary = vocabulary or _read_vocabulary(Path(folder) / VOCABULARY_FILE, model)
        return model.eval()


class _Undrawn(TorchFunctionMode):
    """Leaves parameters as they are where they would be drawn: on meta, drawing imports PyTorch's compiler, for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn, given = func in (nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_), kwargs or {}
        return (args[0] if args else given["tensor"]) if drawn else func(*args, **given)


def _check_place(folder: Path, vocabulary: Any) -> None:
    """Raises: DataError: saving there would destroy a run, or give the model a vocabulary that is not its own."""
    config = folder / CONFIG_FILE
    try:
        saved, foreign = read_yaml(config) if exists(config) else {}, exists(folder / VOCABULARY_FILE)
    except OSError as error:
        advice = "Choose another folder"
        raise DataError(str(folder), "must be a folder that can be read", error.strerror, advice) from error
    if isinstance(saved, dict) and (more := saved.keys() - {"model"}):
        got, advice = f"one with {', '.join(sorted(map(str, more)))} in {CONFIG_FILE}", "Choose another folder"
        raise DataError(str(folder), "must not be the folder of a run", got, advice)
    if vocabulary is None and foreign:
        rule, advice = "must hold no vocabulary where the model has none", "Give the model's, or choose another folder"
        raise DataError(str(folder), rule, VOCABULARY_FILE, advice)


def _read_vocabulary(path: Path, model: PretrainedModel) -> Any:
    """The vocabulary beside a model, None without one. Raises: CheckpointError: it is of another size than the model."""
    if not path.is_file():
        return None
    vocabulary = type(model).read_vocabulary(path)
    check_vocabulary(path, vocabulary, getattr(model.config, "vocabulary_size", None))
    return vocabulary


def check_vocabulary(path: Path, vocabulary: Sized, size: int | None, key: str = "vocabulary_size") -> None:
    """Raises CheckpointError: the vocabulary that `path` holds is of another size than the model, whose `key` it is."""
    if len(vocabulary) != size:
        got = f"{len(vocabulary)} words and model.{key}={size}"
        raise CheckpointError(str(path), "must be of the model's size", got, "Restore the run's own file")


def save_config(folder: Path | str, sections: dict[str, Any]) -> None:
    """Write `config.yaml`, atomically. Raises: DataError: it cannot be written."""
    write_listed(
        Path(folder) / CONFIG_FILE, lambda file: file.write_text(yaml_text(sections), encoding="utf-8", newline="")
    )


def save_weights(folder: Path | str, model: PretrainedModel, *, trained: bool = True) -> None:
    """Write `model.safetensors`, atomically; what is shared is stored once.

    Args: trained: False for weights that a training begins with, or may begin again beside, see `holds_trained`.
    Raises: DataError: it cannot be written.
    """
    save_tensors(folder, model.own_state_dict(), ({} if trained else _UNTRAINED) | notes_of(model))


def save_tensors(folder: Path | str, tensors: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """Write tensors as `model.safetensors`, atomically, compressed ones in their small forms. Raises: DataError: it cannot be."""
    from safetensors.torch import save_file

    path = Path(folder) / WEIGHTS_FILE
    kept = {name: value.detach().contiguous().cpu() for name, value in stored_tensors(tensors).items()}
    write_listed(path, lambda temporary: save_file(kept, temporary, notes or None))


def notes_of(model: nn.Module) -> dict[str, str]:
    """What `model.safetensors` notes of a model beside its weights: what its cells compute that are not the package's own."""
    found = equations(model)
    return {_EQUATIONS: json.dumps(found)} if found else {}


def stored_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a file holds of them: of compressed ones their small forms."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kept |= tensor.stored(name) if isinstance(tensor, CompressedWeight) else {name: tensor}
    return kept


def holds_trained(folder: Path | str) -> bool:
    """Whether `model.safetensors` is there and not known to hold the weights that a training began with: a damaged one may."""
    from safetensors import SafetensorError

    path = Path(folder) / WEIGHTS_FILE
    if not path.exists():
        return False
    try:
        return not _UNTRAINED.items() <= _notes(path).items()
    except (SafetensorError, OSError):
        return True


def _notes(path: Path) -> dict[str, str]:
    """What `save_weights` noted in a file. Raises: SafetensorError, OSError: it cannot be read."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def check_cells(folder: Path | str, model: PretrainedModel) -> None:
    """Raises: CheckpointError: a cell of one's own is not the one that the folder's `model.safetensors` was written with."""
    from safetensors import SafetensorError

    path = Path(folder) / WEIGHTS_FILE
    try:
        text = _notes(path).get(_EQUATIONS)
    except (SafetensorError, OSError):
        return  # the weights are not what is read here, or were refused
    if text is not None:
        check_equations(str(path), written(text), model, f"gatedrnn accept {path.parent} --import FILE")


def note_cells(folder: Path | str, model: PretrainedModel | None) -> None:
    """Write into `model.safetensors` what a model's cells compute now, or nothing of any. Raises: DataError: it cannot."""
    from safetensors.torch import load_file, save_file

    path = Path(folder) / WEIGHTS_FILE
    notes = {name: text for name, text in _notes(path).items() if name != _EQUATIONS}
    kept = {name: value.clone() for name, value in load_file(path).items()}  # Windows replaces no file that is mapped
    notes = notes | ({} if model is None else notes_of(model))
    write_listed(path, lambda temporary: save_file(kept, temporary, notes or None))


def read_config(folder: Path | str, kind: type) -> Any:
    """The model section of `config.yaml`, a `kind`.

    Raises: CheckpointError: missing. ConfigError: no YAML. ArgumentError: an unknown key or a value out of range.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(str(path), "must exist", "no such file", "Is this a run's folder?")
    values = read_yaml(path)
    if not isinstance(values, dict) or "model" not in values:
        raise CheckpointError(str(path), "must have a section 'model'", None, "Is this a run's folder?")
    section, reader = values["model"], getattr(kind, "without_unread", dict)
    return from_dict(kind, reader(section) if isinstance(section, dict) else section, "model")


def load_weights(folder: Path | str, model: PretrainedModel) -> None:
    """Read `model.safetensors` into `model`, all or nothing, and check it and the configuration against their checksums.

    Raises: CheckpointError: missing, damaged, changed, of other names or shapes than the configuration says, or written with
        another equation of a cell of one's own.
    """
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(str(path), "must exist", "no such file", "Is this a run's folder?")
    saved = read_weights(path, model)
    for name in (CONFIG_FILE, WEIGHTS_FILE):  # last, where damage that shows has been named
        check(Path(folder) / name)
    check_cells(folder, model)
    put_weights(model, saved)


def read_weights(path: Path, model: PretrainedModel, prefix: str = "") -> dict[str, Tensor]:
    """The weights of `model`, by name, in a file that `save_weights` wrote.

    Args: prefix: what its names begin with.
    Raises: CheckpointError: it cannot be read, is damaged, or has other names or shapes than the model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_readable(path)
    try:
        saved = {name.removeprefix(prefix): value.clone() for name, value in load_file(path).items()}  # not mapped
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(str(path), "is damaged", str(error), "Restore the file or train again") from error
    own, rule = model.state_dict(), "must hold the weights that the configuration describes"
    try:
        saved = gather(saved, {name: value.shape for name, value in own.items()})
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error
    for name, kept in model.shared.items():
        if name not in saved and kept in saved:
            saved[name] = saved[kept]
    if saved.keys() != own.keys():
        odd = sorted(saved.keys() ^ own.keys())[0]
        where = "is not in the file" if odd in own else "is not in the model"
        got = f"{odd!r}, which {where}"
        raise CheckpointError(str(path), rule, got, "Restore the run's own file")
    for name, value in own.items():
        if saved[name].shape != value.shape:
            got = f"{name} of shape {list(saved[name].shape)} in the file and {list(value.shape)} by the configuration"
            raise CheckpointError(str(path), rule, got, "Restore the run's own file")
        if not all(torch.isfinite(part).all() for part in stored_parts(saved[name])):
            raise CheckpointError(str(path), "must hold finite weights", f"{name} with NaN or infinity", "Train again")
    return saved


def put_weights(model: PretrainedModel, saved: dict[str, Tensor]) -> None:
    """Make them the model's, as `read_weights` gave them."""
    model.load_state_dict({name: value for name, value in saved.items() if not compressed(value)}, strict=False)
    for name, value in saved.items():
        if compressed(value) and name not in model.shared:
            put_weight(model, name, value)


def put_weight(model: nn.Module, name: str, value: Tensor) -> None:
    """Make `value` the parameter `name`, and what is shared with it; a compressed one has no gradient."""
    weight, shared = nn.Parameter(value, requires_grad=not compressed(value)), getattr(model, "shared", {})
    for each in (name, *(other for other, kept in shared.items() if kept == name)):
        _put_parameter(model, each, weight)


def _put_parameter(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, parameter)
