"""The questions that a page asks, and their form."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from attnscope.support.errors import AttnscopeError

CHARACTERS = 20_000  # of a text
_BYTES = 12 << 20  # of a picture in base 64
_WRITTEN = 2_048  # tokens that the model may write

By = Literal["zero", "mean", "other"]
Shown = Literal["text", "other", "difference"]
Number = Annotated[int, Field(ge=0, lt=1 << 31)]
Head = tuple[Number, Number]
Temperature = Annotated[float, Field(gt=0, le=100)]


class Question(BaseModel):
    """A question, whose fields are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Look(Question):
    """Read a text, perhaps without some heads, and a second one; predict at a position, by default the last."""

    text: Annotated[str, Field(max_length=CHARACTERS)]
    target: Annotated[str, Field(max_length=CHARACTERS)] | None = None  # that the decoder of an encoder-decoder reads
    other: Annotated[str, Field(max_length=CHARACTERS)] | None = None
    removed: Annotated[tuple[Head, ...], Field(max_length=10_000)] = ()  # layers and heads
    by: By = "zero"  # what the removed heads return instead
    written: Annotated[tuple[Number, ...], Field(max_length=_WRITTEN)] = ()  # ids of tokens that follow the text
    picture: Annotated[str, Field(max_length=64)] | None = None  # the name of one that was sent
    chat: bool = False  # whether the model's chat template writes the text as what a user says
    position: Number | None = None
    mask: bool = True  # whether a masked language model restores the token, or predicts at it as it is
    temperature: Temperature = 1.0


class Picture(Question):
    """A picture that was dropped on the page, its bytes in base 64."""

    data: Annotated[Base64Bytes, Field(max_length=_BYTES)]


class MapOf(Question):
    """The weights of a head."""

    layer: Number
    head: Number
    of: Shown = "text"


class RowOf(MapOf):
    """The weights of one query, or on one key, of a head."""

    token: Number
    direction: Literal["from", "to"]


class Predict(Question):
    """The likeliest tokens at a position."""

    position: Number
    mask: bool = True
    temperature: Temperature = 1.0


class Draw(Predict):
    """A token drawn at random after the last."""

    seed: Number = 0


class Effects(Question):
    """The effect of each head of a layer, alone, on the predictions at a position."""

    layer: Number
    position: Number
    token: Number  # id of the token that the effect is on
    by: By = "zero"
    mask: bool = True


class Attribution(Question):
    """The parts of a logit that heads add directly, of a token after a position."""

    position: Number
    token: Number


class Inside(Question):
    """The share of a query's weight on some keys, such as the patches in a box, by head."""

    query: Number
    keys: Annotated[tuple[Number, ...], Field(min_length=1, max_length=20_000)]


class Reach(Question):
    """The weights of all heads from one query to one key."""

    query: Number
    key: Number


class Shares(Question):
    """How much of a token's weight goes to the prompt, to what was written, and to itself, by head."""

    position: Number


class Receivers(Question):
    """The heads by which later sentences attend to one sentence."""


class Times(Question):
    """When each word of a transcript begins, by the weights of a head."""

    layer: Number
    head: Number


class Transcribe(Question):
    """The transcript that the model writes of a sound."""


class Code(Question):
    """What is shown, as Python and as a command."""

    layer: Number
    head: Number
    position: Number
    mask: bool = True


#: Questions by their names.
QUESTIONS: Mapping[str, type[Question]] = {
    "look": Look,
    "picture": Picture,
    "map": MapOf,
    "row": RowOf,
    "predict": Predict,
    "draw": Draw,
    "effects": Effects,
    "attribution": Attribution,
    "shares": Shares,
    "inside": Inside,
    "reach": Reach,
    "receivers": Receivers,
    "times": Times,
    "transcribe": Transcribe,
    "code": Code,
}


def question_of(name: str, form: Mapping[str, Any]) -> Question:
    """A question by its name and its fields, which came from a page."""
    if name not in QUESTIONS:
        raise AttnscopeError(f"found the question {name!r:.40}; expected one of {', '.join(QUESTIONS)}")
    try:
        return QUESTIONS[name].model_validate(form)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the question"
        raise AttnscopeError(f"{where}: {first['msg']}") from error
