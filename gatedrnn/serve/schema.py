"""What requests say: the bodies, checked by Pydantic, and one line for what is wrong with one."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError, ValidationError

from gatedrnn.core.checks import nearest
from gatedrnn.data import MAPPINGS
from gatedrnn.studies.parsing import GATES
from gatedrnn.trees import ALGORITHMS

MOST_LOGPROBS = 20
_MOST_STOPS, _LONGEST_STOP = 16, 256
_LONGEST_SHOWN = 60  # letters of a value in a message


def _described(rule: str) -> Any:
    """A validator that says `rule` where none of the kinds of a value fits."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("kind", rule) from error  # type: ignore[arg-type]

    return WrapValidator(check)


def _one_of(choices: Sequence[str]) -> Any:
    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        if value is not None and value not in list(choices):
            raise PydanticCustomError("choice", f"must be one of {', '.join(choices)}")  # type: ignore[arg-type]
        return handler(value)

    return WrapValidator(check)


def _checked_letters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("letters", "must be text without lone surrogates") from error
    return text


Text = Annotated[str, AfterValidator(_checked_letters)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Zero = Annotated[float, Field(ge=0, le=0), _described("must be 0, as penalties are not supported")]
Stop = Annotated[Text, Field(min_length=1, max_length=_LONGEST_STOP)]
Stops = Annotated[
    Stop | Annotated[list[Stop], Field(max_length=_MOST_STOPS)],
    _described(f"must be a string of 1 to {_LONGEST_STOP} characters, or a list of at most {_MOST_STOPS} such strings"),
]
Ids = Annotated[list[int], Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
Prompts = Annotated[
    Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1)],
    _described("must be a string, token ids, or a non-empty list of either, without lone surrogates"),
]
Lines = Annotated[Text | Texts, _described("must be a string or a non-empty list of strings")]
LayerNumber = Annotated[
    Annotated[int, Field(ge=1, lt=1 << 31)] | Annotated[str, Field(max_length=10)],
    _described("must be a whole number from 1, or mean"),
]


class _Fields(BaseModel):
    """Fields of exact types; one that is null is as one that is left out."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class Body(_Fields):
    """A request's body. Args: model: name of the run; needed where several are served."""

    model: str | None = None


class StreamOptions(_Fields):
    """What a stream holds besides. Args: include_usage: whether its last part counts tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


class CompletionBody(Body):
    """The body of /v1/completions, OpenAI's fields and `ignore_eos`. What has no use here may be given if it changes nothing."""

    prompt: Prompts = ""
    max_tokens: Annotated[int, Field(ge=0)] = 16
    temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    stop: Stops | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] = Field(default_factory=dict, max_length=1024)
    ignore_eos: bool = False
    best_of: int | None = None
    presence_penalty: Zero = 0.0
    frequency_penalty: Zero = 0.0
    user: Any = None

    @property
    def stops(self) -> list[str]:
        """Of `stop`, as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ParseBody(Body):
    """The body of /parse: text, and the options of `gatedrnn parse`."""

    text: Lines
    layer: LayerNumber | None = None
    gate: Annotated[str, _one_of(GATES)] | None = None
    algorithm: Annotated[str, _one_of(ALGORITHMS)] = "unbiased"
    mapping: Annotated[str, _one_of(MAPPINGS)] | None = None


class SurprisalBody(Body):
    """The body of /surprisal: text, and the options of `gatedrnn surprisal`."""

    text: Lines
    carried: bool = False
    tokens: bool = False
    layer: LayerNumber | None = None
    mapping: Annotated[str, _one_of(MAPPINGS)] = "exact"


def first_error(errors: Sequence[Any], known: Sequence[str]) -> tuple[str, str | None]:
    """One line for the first of Pydantic's errors, and the field that it is about.

    Args: known: names of the fields that there are.
    """
    error = errors[0]
    kind, places = error["type"], [str(place) for place in error["loc"] if place not in ("body", "query")]
    if kind == "json_invalid":
        return f"body: must be JSON; got {error.get('ctx', {}).get('error', 'something else')}. Send an object", None
    field = short(".".join(places))
    if kind == "string_unicode" and not field:
        return "body: names of fields must be text without lone surrogates. Send other names", None
    if not field:
        return "body: must be a JSON object, with the header content-type: application/json. Send one", None
    if kind == "missing":
        return f"{field}: is missing. Add it", field
    if kind == "extra_forbidden":
        return f"{field}: is not known. {nearest(field, known)}", field
    rule = error["msg"].replace("Input should", "must").replace("String should", "must").replace("List should", "must")
    return f"{field}: {rule}; got {short(ascii(error.get('input')))}. Send another value", field


def short(text: str) -> str:
    """A value of a request as a message shows it: a line of at most 60 letters that can be printed."""
    flat = ascii(text)[1:-1] if not text.isprintable() else text
    return flat if len(flat) <= _LONGEST_SHOWN else f"{flat[:_LONGEST_SHOWN]}…"
