"""A live view in the browser: a small server on this machine, for whoever has the address that it prints."""

from __future__ import annotations

import asyncio
import html
import json
import os
import secrets
import socket
import struct
import threading
import webbrowser
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from attnscope.report.language import language
from attnscope.results.page import parts
from attnscope.results.view import SCRIPTS, STYLES
from attnscope.support.errors import AttnscopeError
from attnscope_live.conversation import Answer, Conversation

HOST = "127.0.0.1"
_LARGEST = 16 << 20  # bytes of a question
_REFUSED = 4403  # code of a closed channel, as HTTP's 403


def address_of(port: int, token: str) -> str:
    """The address of the page."""
    return f"http://{HOST}:{port}/?token={token}"


def serve(
    conversation: Conversation,
    start: Mapping[str, Any],
    tell: Callable[[str], None],
    *,
    port: int = 0,
    opens: bool = True,
) -> None:
    """Show a model until Ctrl-C: `tell` the address, and open it in the browser."""
    token = secrets.token_urlsafe(32)
    with _listening(port) as listening:
        port = listening.getsockname()[1]
        address = address_of(port, token)
        settings: dict[str, Any] = {"log_level": "error", "access_log": False, "lifespan": "off"}
        app = application(conversation, start, token, port)
        server = uvicorn.Server(uvicorn.Config(app, ws_max_size=_LARGEST, **settings))
        tell(f"{conversation.loaded.name} answers at {address}")
        if os.environ.get("SSH_CONNECTION"):
            tell(f"Over SSH, forward the port first, on your own machine: ssh -L {port}:{HOST}:{port} HOST")
        elif opens:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        tell("Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once it has closed its channels
            server.run(sockets=[listening])


def check_port(port: int) -> None:
    """Reject a port that is in use, before a model is loaded."""
    _listening(port).close()


def _listening(port: int) -> socket.socket:
    """A socket of this machine alone, on this port; 0 means a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # a browser that follows the address at once waits for the server
    except (OSError, OverflowError) as error:
        listening.close()
        raise AttnscopeError(f"port {port} cannot be used: leave --port out, or choose a free one") from error
    return listening


def application(conversation: Conversation, start: Mapping[str, Any], token: str, port: int) -> Any:
    """The ASGI application: its page, and a channel to the model, for requests with the token from its own page."""
    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    one_at_a_time = ThreadPoolExecutor(1, "attnscope-view")
    page = page_of(conversation, start)

    def may_enter(asking: HTTPConnection) -> bool:
        given = asking.query_params.get("token", "")
        is_ours = secrets.compare_digest(given.encode(), token.encode())
        return is_ours and asking.headers.get("host") in hosts

    async def show(request: Request) -> Response:
        if not may_enter(request):
            return PlainTextResponse("attnscope: open the whole address that the terminal shows\n", 403)
        return HTMLResponse(page, headers=_HEADERS)

    async def talk(channel: WebSocket) -> None:
        origins = {f"http://{host}" for host in hosts}
        if not may_enter(channel) or channel.headers.get("origin") not in origins:
            await channel.close(_REFUSED)
            return
        await channel.accept()
        await _Talk(conversation.another(), one_at_a_time, channel).run()

    return Starlette(routes=[Route("/", show), WebSocketRoute("/channel", talk)])


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; media-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class _Talk:
    """The questions of one page: a `look` stops all that was asked before it, also what is running."""

    def __init__(self, conversation: Conversation, worker: ThreadPoolExecutor, channel: Any) -> None:
        self._conversation, self._worker, self._channel = conversation, worker, channel
        self._latest = 0  # number of the last look
        self._closed = False

    async def run(self) -> None:
        """Answer until the page is closed."""
        running = set[asyncio.Task[None]]()
        try:
            while True:
                question = _question(await self._channel.receive_text())
                if question is None:
                    continue
                if question["ask"] == "look":
                    self._latest = question["number"]
                task = asyncio.create_task(self._answer(question, self._latest))
                running.add(task)
                task.add_done_callback(running.discard)
        except (WebSocketDisconnect, RuntimeError, KeyError):  # closed, or a frame that is no text
            self._closed = True

    async def _answer(self, question: dict[str, Any], look: int) -> None:
        """Answer a question about a look, unless a newer one comes."""
        number, asked = question["number"], question["ask"]

        def stopped() -> bool:
            return self._closed or look != self._latest

        def compute() -> Answer | None:
            if stopped():
                return None
            return self._conversation.reply(asked, question["question"], stopped)

        answer = await asyncio.get_running_loop().run_in_executor(self._worker, compute)
        if answer is not None and not stopped():
            await self._send({"number": number} | answer.content, answer.arrays)

    async def _send(self, content: dict[str, Any], arrays: Any) -> None:
        """One frame: the length of the JSON, the JSON, and the arrays, whose sizes it has."""
        sized = content | {"sizes": [len(array) for array in arrays]}
        head = json.dumps(sized, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        try:
            await self._channel.send_bytes(struct.pack("<I", len(head)) + head + b"".join(arrays))
        except Exception:  # noqa: BLE001 the page is gone, however its library says so
            self._closed = True


def _question(text: str) -> dict[str, Any] | None:
    """A question by its form; None for anything else."""
    try:
        question = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_question = (
        isinstance(question, dict)
        and isinstance(question.get("number"), int)
        and isinstance(question.get("ask"), str)
        and isinstance(question.get("question"), dict)
    )
    return question if is_question else None


def page_of(conversation: Conversation, start: Mapping[str, Any]) -> str:
    """The page, which asks the model through its channel."""
    script = parts.together(*SCRIPTS, *conversation.scripts)
    style = parts.together(*STYLES, *conversation.styles)
    data = conversation.about | {"start": start}
    return (
        f'<!doctype html><html lang="{language()}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{html.escape(conversation.loaded.name)}</title>'
        f'<link rel="icon" href="data:,"><style>body {{ margin: 1rem }}\n{style}</style></head><body>'
        f'<main id="live"></main>'
        f'<script type="application/json" id="data">{parts.script_json(data)}</script>'
        f'<script type="application/json" id="words">{parts.script_json(parts.translated_messages(script))}</script>'
        f'<script type="module">{script}\n'
        'talkToServer(document.getElementById("live"), JSON.parse(document.getElementById("data").textContent));'
        "</script></body></html>"
    )
