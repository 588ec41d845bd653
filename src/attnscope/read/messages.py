"""The messages of a chat, from its usual formats."""

from collections.abc import Mapping
from typing import Any, cast

from attnscope.read.files import check_characters
from attnscope.support.errors import AttnscopeError

CHAT_FIELDS = ("messages", "conversations")
#: Names of roles in other formats.
_TOOLS = dict.fromkeys(("function", "ipython", "observation"), "tool")
_ROLES = {"human": "user", "gpt": "assistant", "developer": "system", **_TOOLS}
_KNOWN = ("system", "user", "assistant", "tool")


def messages_of(chat: object, where: str, field: str | None = None) -> list[dict[str, Any]]:
    """The messages of one chat, each with its ``role``, ``content`` and other fields."""
    if isinstance(chat, Mapping):
        fields = CHAT_FIELDS if field is None else (field,)
        chat = next((chat[name] for name in fields if name in chat), None)
        if chat is None:
            raise AttnscopeError(f"{where}: no field {' or '.join(map(repr, fields))}: name it (--field)")
    if not isinstance(chat, list) or not chat:
        raise AttnscopeError(f"{where}: expected a chat: a list of at least one message")
    each = enumerate(cast("list[Any]", chat), 1)
    return [_message(message, f"{where}, message {number}") for number, message in each]


def is_chat(value: object) -> bool:
    """Whether this is a list of messages, or an object with one."""
    if isinstance(value, Mapping):
        return "text" not in value and any(is_chat(value.get(name)) for name in CHAT_FIELDS)
    if not isinstance(value, list) or not value:
        return False
    first: Any = cast("list[Any]", value)[0]
    return isinstance(first, Mapping) and ({"role", "content"} <= first.keys() or {"from", "value"} <= first.keys())


def without_nothing(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table without null parts of messages: tables have a field for every part of any message."""
    return {
        name: [
            {key: part for key, part in cast("Mapping[str, Any]", item).items() if part is not None}
            if isinstance(item, Mapping)
            else item
            for item in cast("list[Any]", value)
        ]
        if isinstance(value, list)
        else value
        for name, value in row.items()
    }


def group_of_role(role: str) -> str:
    """The role by its usual name."""
    return _ROLES.get(role, role)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise AttnscopeError(f'{where}: expected an object such as {{"role": "user", "content": "..."}}')
    fields = {str(key): value for key, value in cast("Mapping[Any, Any]", message).items()}
    if "role" not in fields and "from" in fields:
        role, content = fields.pop("from"), fields.pop("value", None)
        fields = {"role": _ROLES.get(str(role), role), "content": content} | fields
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or group_of_role(role) not in _KNOWN:
        raise AttnscopeError(f"{where}: has the role {role!r:.40}; expected one of {', '.join(_KNOWN)}")
    if content is not None and not isinstance(content, str):
        raise AttnscopeError(f"{where}: its content is not a string; expected text without pictures or sound")
    check_characters(content or "", where)
    return fields
