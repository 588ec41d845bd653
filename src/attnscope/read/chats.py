"""Chats as a model reads them: written by the tokenizer's template, each token with the role of its speaker."""

import ctypes
import hashlib
import json
import re
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from attnscope.read.files import decode_utf8, inner_suffix, json_objects, read_bytes
from attnscope.read.messages import group_of_role, is_chat, messages_of
from attnscope.read.sources import Text, as_list, first_row, is_table, names_a_dataset
from attnscope.read.texts import Corpus
from attnscope.read.urls import Url, is_url
from attnscope.read.windows import Frame, Window, Windows
from attnscope.support.errors import AttnscopeError, reason_of

TEMPLATE = "template"
SECONDS = 10.0  # limit for a template and one chat
ADDED = 1_000_000  # characters that it may add, beyond twice the contents
_BARE = Frame((), (), {})  # the template adds special tokens
_MARK = re.compile("\ue000(\\d+)\ue001")  # placeholder for the content of a message, in private characters
_ADVICE = "leave that chat out, or use another template (--chat-template FILE)"


class Region(NamedTuple):
    """Characters of a chat that are the content of a message: first, one past the last, and the role."""

    start: int
    end: int
    role: str


class Chats:
    """Chats before a template is known."""

    def __init__(self, given: object, *, field: str | None = None, template: str | Path | None = None) -> None:
        given = as_list(given)
        if is_chat(given):
            given = [given]
        items = cast("list[Any]", given) if isinstance(given, list) else [given]
        if any(isinstance(item, list | Mapping) for item in items):
            chats = [messages_of(item, f"text {number}", field) for number, item in enumerate(items, 1)]
            self._corpus = Corpus.from_sources([json.dumps(chat, ensure_ascii=False) for chat in chats])
        else:
            self._corpus = Corpus.from_sources(given, field=field, chats=True)
        if isinstance(template, Path):
            template = decode_utf8(read_bytes(template), str(template))
        self._template = template

    def read_with(self, tokenizer: Any, *, to_answer: bool = False) -> "ChatTexts":
        """The chats as this tokenizer's template writes them; with `to_answer`, up to the assistant's answer."""
        if self._template is None and not getattr(tokenizer, "chat_template", None):
            raise AttnscopeError(
                "the texts are chats, but the tokenizer has no chat template: give a Jinja file (--chat-template FILE)"
            )
        return ChatTexts(self._corpus, tokenizer, self._template, to_answer)


@dataclass(frozen=True)
class ChatTexts:
    """Chats as one template writes them."""

    corpus: Corpus  # messages as JSON
    tokenizer: Any  # source of the template
    template: str | None = None  # another template
    to_answer: bool = False  # whether chats end before the assistant's answer, without its last message

    def __iter__(self) -> Iterator[Text]:
        return (Text(name, text) for name, text, _ in self.written())

    def characters(self) -> int:
        """The length of all chats, with the template's marks."""
        return self._measured[1]

    def sha256(self) -> str:
        """Hash of the written chats and their roles; a template may write the date."""
        return self._measured[0]

    def windows(self, *, length: int, stride: int | None = None, limit: int | None = None) -> "ChatWindows":
        """Windows of the chats, each within one chat. See `Windows`."""
        Windows([], self.tokenizer, length=length, stride=stride, frame=_BARE)  # checks the arguments
        return ChatWindows(self, length, stride, limit)

    @cached_property
    def _measured(self) -> tuple[str, int]:
        digest, characters = hashlib.sha256(b"chats"), 0
        for name, text, regions in self.written():
            characters += len(text)
            digest.update(json.dumps([name, text, regions]).encode() + b"\n")
        return digest.hexdigest(), characters

    def written(self) -> Iterator[tuple[str, str, list[Region]]]:
        """Name, text and contents of each chat."""
        for chat in self.corpus:
            messages = json.loads(chat.content)
            while self.to_answer and messages and group_of_role(messages[-1]["role"]) == "assistant":
                messages.pop()
            if not messages:
                raise AttnscopeError(f"{chat.name}: only the assistant speaks, so there is nothing to answer")
            text, regions = written_out(
                messages, chat.name, self.tokenizer, self.template, add_generation_prompt=self.to_answer
            )
            yield chat.name, text, regions


@dataclass(frozen=True)
class ChatWindows:
    """The windows of chats, cut while they are iterated. Made by `ChatTexts.windows`."""

    chats: ChatTexts
    length: int
    stride: int | None
    limit: int | None

    def __iter__(self) -> Iterator[Window]:
        left = self.limit
        of = {"length": self.length, "stride": self.stride, "frame": _BARE}
        for name, text, regions in self.chats.written():
            for window in Windows([Text(name, text)], self.chats.tokenizer, limit=left, **cast("Any", of)):
                if not window.text:
                    raise AttnscopeError(
                        f"{name}: the characters of its tokens are unknown, so their roles are too: use a fast "
                        "tokenizer (tokenizer.json), or give the chat as a text"
                    )
                yield replace(window, roles=roles_of(window.spans, regions))
                left = None if left is None else left - 1
            if left == 0:
                return


def are_chats(given: object, field: str | None = None) -> bool:
    """Whether texts are chats, by the objects or by the first line of the first file."""
    if is_chat(given):
        return True
    first: Any = cast("list[Any]", given)[0] if isinstance(given, list) and given else given
    if isinstance(first, str) and is_url(first):
        first = Url(first)
    if not isinstance(first, Path | Url):
        return is_chat(first)
    has_rows = is_table(first) and (isinstance(first, Url) or first.is_file())
    if field is None and (has_rows or names_a_dataset(first)):
        return is_chat(first_row(first))
    if field is not None or inner_suffix(first) != ".jsonl" or (isinstance(first, Path) and not first.is_file()):
        return False
    _, value = next(json_objects(first, "text"), (0, None))
    return is_chat(value)


def written_out(
    messages: list[dict[str, Any]], name: str, writer: Any, template: str | None = None, **settings: Any
) -> tuple[str, list[Region]]:
    """A chat as a template writes it, and the positions of the texts of its messages."""
    said: list[tuple[str, str]] = []
    marked: list[dict[str, Any]] = []

    def marking(text: str, role: str) -> str:
        said.append((text, group_of_role(role)))
        return mark(len(said) - 1)

    for message in messages:
        content: Any = message.get("content")
        if isinstance(content, list):
            parts = cast("list[dict[str, Any]]", content)
            content = [
                {**part, "text": marking(part["text"], message["role"])} if part.get("text") else part for part in parts
            ]
        elif content:
            content = marking(str(content), message["role"])
        marked.append({**message, "content": content} if content else message)
    text, skeleton = (applied(several, name, writer, template, **settings) for several in (messages, marked))
    return text, regions_between(text, skeleton, said, name)


def mark(number: int) -> str:
    """The placeholder for the content of that number when a template writes a chat the second time."""
    return f"\ue000{number}\ue001"


def regions_between(text: str, skeleton: str, said: Sequence[tuple[str, str]], name: str) -> list[Region]:
    """Positions of contents in a chat, by comparison with the template's output for `mark` as each content."""
    between, numbers = _MARK.split(skeleton)[::2], [int(number) for number in _MARK.findall(skeleton)]
    if not numbers:
        raise AttnscopeError(f"{name}: the chat template writes {text!r:.40}, without any message: {_ADVICE}")
    at = len(between[0])
    regions: list[Region] = []
    fits = text.startswith(between[0]) and max(numbers) < len(said)
    for number, after in zip(numbers, between[1:], strict=True):
        content, role = said[number] if fits else ("", "")
        forms = (content, content.strip(), content.lstrip(), content.rstrip())
        fitting = [form for form in forms if text.startswith(form + after, at)]
        fits = fits and bool(fitting)
        if fits:
            regions.append(Region(at, at + len(fitting[0]), role))
            at += len(fitting[0] + after)
    if not fits or at != len(text):
        raise AttnscopeError(
            f"{name}: what the chat template writes around message {len(regions) + 1} depends on the message, so its "
            f"tokens cannot be separated from the template's: {_ADVICE}"
        )
    left_out = [part for number, part in enumerate(said) if part[0].strip() and number not in numbers]
    if left_out:
        content, role = left_out[0]
        raise AttnscopeError(f"{name}: the chat template omits the {role}'s message {content!r:.40}: {_ADVICE}")
    return regions


def roles_of(spans: Sequence[tuple[int, int]], regions: list[Region]) -> tuple[str, ...]:
    """The role of each token: that of the content it has a character of, or ``template``."""
    ends = [region.end for region in regions]
    roles: list[str] = []
    for start, end in spans:
        content = bisect_left(ends, start + 1)  # the first content that ends after the token's beginning
        inside = content < len(regions) and regions[content].start < max(end, start + 1)
        roles.append(regions[content].role if inside else TEMPLATE)
    return tuple(roles)


def applied(messages: list[dict[str, Any]], name: str, writer: Any, template: str | None, **settings: Any) -> str:
    """A chat of that name as a template writes it, by a tokenizer or a processor."""
    from jinja2 import TemplateSyntaxError

    try:
        with _within(SECONDS):
            text = str(writer.apply_chat_template(messages, chat_template=template, tokenize=False, **settings))
    except TimeoutError:
        raise AttnscopeError(f"{name}: the chat template does not end within {SECONDS:.0f} s: {_ADVICE}") from None
    except TemplateSyntaxError as error:
        raise AttnscopeError(
            f"the chat template is not valid Jinja ({reason_of(error)}): correct it, or give another (--chat-template "
            "FILE)"
        ) from error
    except Exception as error:  # templates are programs that may raise anything
        raise AttnscopeError(f"{name}: the chat template rejects it ({reason_of(error)}): {_ADVICE}") from error
    if len(text) > ADDED + 2 * len(str(messages)):
        raise AttnscopeError(
            f"{name}: the chat template writes {len(text):,} characters, far more than the messages have: {_ADVICE}"
        )
    return text


@contextmanager
def _within(seconds: float) -> Generator[None]:
    """Raise a TimeoutError after this time."""
    raising = ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(seconds, raising, (ctypes.c_ulong(threading.get_ident()), ctypes.py_object(TimeoutError)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
