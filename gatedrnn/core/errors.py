"""The package's errors. Each reads `<owner.field>: <rule>; got <values>. <what to do>.`"""


class GatedRNNError(Exception):
    """Base of every error that a user can cause.

    Args:
        owner: what is wrong, as `Class.field`, `section.key` or a file path.
        rule: what must hold.
        got: the offending value, or None if the rule is enough.
        advice: what to do about it, a sentence without its full stop.
    """

    def __init__(self, owner: str, rule: str = "", got: object = None, advice: str = "") -> None:
        message = owner
        if rule:
            message = f"{owner}: {rule}"
            if got is not None:
                message = f"{message}; got {got}"  # torch.compile cannot add to what it has formatted
            message = f"{message}."
            if advice:
                message = f"{message} {advice}" if advice.endswith((".", "?")) else f"{message} {advice}."
        self.args = (message,)  # as super().__init__ does, which torch.compile cannot trace


class ArgumentError(GatedRNNError, ValueError):
    """An argument, a configuration value or a tensor's shape or type breaks a rule."""


class DataError(GatedRNNError, ValueError):
    """A text, a treebank or a vocabulary cannot be used."""


class ConfigError(GatedRNNError, ValueError):
    """A configuration file cannot be read."""


class CheckpointError(GatedRNNError, RuntimeError):
    """A saved model is missing, damaged or does not fit."""


class EquationError(CheckpointError):
    """A cell of one's own computes something else than when the model was saved."""


class BackendError(GatedRNNError, RuntimeError):
    """A named backend cannot serve the request."""


def first_line(error: BaseException) -> str:
    """Of what a library says of an error; the error's kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
