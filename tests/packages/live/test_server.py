"""The server of a live view: who may enter, what it serves, and that a newer question stops an older one."""

import json
import re
import signal
import socket
import struct
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync import client as websockets

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.cli.view import view as command
from attnscope.results import view
from attnscope_live.conversation import Conversation
from attnscope_live.copied import Source
from attnscope_live.opening import state_of
from attnscope_live.server import serve
from tests.command_processes import Started, wait_until
from tests.packages.live.served import TOKEN, serving

TEXT = "The car near the rivers is old."


@pytest.fixture(scope="module")
def served():
    """The port of a server of the bundled causal model."""
    conversation = Conversation(load_model("bundled:tasks", device="cpu"), Source("bundled:tasks"))
    with serving(conversation, {"text": TEXT}) as port:
        yield port


def channel(port, *, token=TOKEN, **headers):
    origin = headers.pop("origin", f"http://127.0.0.1:{port}")
    return websockets.connect(f"ws://127.0.0.1:{port}/channel?token={token}", origin=origin, **headers)


def received(talk):
    """One answer and its arrays."""
    frame = talk.recv(timeout=60)
    (size,) = struct.unpack_from("<I", frame)
    content, at, arrays = json.loads(frame[4 : 4 + size]), 4 + size, []
    for length in content["sizes"]:
        arrays.append(frame[at : at + length])
        at += length
    assert at == len(frame)
    return content, arrays


def asked(talk, number, name, **question):
    talk.send(json.dumps({"number": number, "ask": name, "question": question}))


def test_it_answers_its_own_page(served):
    with channel(served) as talk:
        asked(talk, 1, "look", text=TEXT)
        content, (small,) = received(talk)
        assert content["number"] == 1
        assert len(small) == 16 * content["side"] ** 2
        asked(talk, 2, "map", layer=0, head=1)
        content, (codes,) = received(talk)
        assert len(codes) == content["n"] * content["m"]
        asked(talk, 3, "look", text="")
        assert "found no text" in received(talk)[0]["error"]


@pytest.mark.parametrize(
    "other",
    [
        {"token": "wrong"},
        {"token": ""},
        {"origin": "http://example.com"},
        {"origin": None},
        {"origin": "http://127.0.0.1:1"},
    ],
)
def test_nobody_else_may_talk_to_it(served, other):
    with pytest.raises(InvalidStatus) as refused, channel(served, **other):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        (f"/?token={TOKEN}", None, 200),
        ("/", None, 403),
        ("/?token=wrong", None, 403),
        (f"/?token={TOKEN}", "example.com", 403),
        (f"/../pyproject.toml?token={TOKEN}", None, 404),
        (f"/static/view.js?token={TOKEN}", None, 404),
    ],
)
def test_it_serves_its_page_and_nothing_else(served, path, host, status):
    request = urllib.request.Request(f"http://127.0.0.1:{served}{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            found, headers, text = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        found, headers, text = error.code, error.headers, error.read().decode()
    assert found == status
    if status == 200:
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert TOKEN not in text
    if status == 403:
        assert text == "attnscope: open the whole address that the terminal shows\n"


def test_the_last_of_many_keystrokes_is_answered_and_few_of_the_others(served):
    with channel(served) as talk:
        texts = [TEXT[:end] for end in range(5, len(TEXT) + 1)]
        for number, text in enumerate(texts, 1):
            asked(talk, number, "look", text=text)
        numbers = []
        while len(texts) not in numbers:
            numbers.append(received(talk)[0]["number"])
        assert numbers == sorted(numbers)
        assert len(numbers) < len(texts)


def test_a_keystroke_stops_what_was_asked_about_the_text_before(served):
    with channel(served) as talk:
        asked(talk, 1, "look", text=TEXT)
        received(talk)
        for number in range(2, 42):
            asked(talk, number, "effects", layer=number % 4, position=5, token=3)
        asked(talk, 42, "look", text="The cars are old.")
        numbers = []
        while 42 not in numbers:
            numbers.append(received(talk)[0]["number"])
        assert len(numbers) < 41
        asked(talk, 43, "effects", layer=1, position=2, token=3)
        assert received(talk)[0]["number"] == 43


def test_what_is_no_question_is_ignored(served):
    with channel(served) as talk:
        for text in ("", "[]", "{}", '{"number": "1", "ask": "look", "question": {}}', "[" * 2000, "\0"):
            talk.send(text)
        asked(talk, 7, "look", text=TEXT)
        assert received(talk)[0]["number"] == 7


def test_two_pages_do_not_see_each_other(served):
    with channel(served) as first, channel(served) as second:
        asked(first, 1, "look", text=TEXT)
        asked(second, 1, "look", text="The cars are old.")
        one, other = received(first)[0], received(second)[0]
        assert len(one["texts"]["text"]["tokens"]) > len(other["texts"]["text"]["tokens"])
        asked(first, 2, "map", layer=0, head=0)
        assert received(first)[0]["n"] == len(one["texts"]["text"]["tokens"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_ctrl_c_ends_the_command_and_leaves_nothing(tmp_path):
    words = ("view", "bundled:tasks", TEXT, "--no-browser")
    process = Started(*words, cwd=tmp_path, SSH_CONNECTION="1 2 3 4", PYTHONUNBUFFERED="1")
    wait_until(lambda: process.printed()[0].count("\n") == 3, process)
    lines = process.printed()[0].splitlines()
    assert lines[0].startswith("tasks answers at http://127.0.0.1:")
    assert "ssh -L" in lines[1]
    port = int(lines[0].split(":")[2].split("/")[0])
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
        pass


def test_without_the_package_a_view_is_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "answers", lambda: None)
    shown = attnscope.view("bundled:tasks", TEXT)
    assert shown.conversation is None
    assert "talkToServer" not in shown.save(tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(AttnscopeError, match=r"is in attnscope-live: .* packages/attnscope-live. .* --page FILE"):
        command({"model": "bundled:tasks", "texts": TEXT})


def test_an_address_is_taken_up_by_another_server():
    state = {"text": 'The "cars" are old.', "removed": [[0, 1]], "target": None}
    address = f"http://127.0.0.1:1/?token=x#{urllib.parse.quote(json.dumps(state))}"
    assert state_of(address) == state
    for text in (TEXT, None, ["a"], "http://127.0.0.1:1/texts.txt", "http://example.com/?token=x#{}"):
        assert state_of(text) == {}
    for fragment in ("", "x", "[]", '{"text": 5}', '{"text": "a", "target": [1]}', "%FF", "[" * 5000):
        with pytest.raises(AttnscopeError, match="the address of a live view holds no"):
            state_of(f"http://127.0.0.1:1/?token=x#{fragment}")


def test_a_server_opens_where_an_address_is(monkeypatch):
    started = []
    monkeypatch.setattr(view.answers(), "serve", lambda shown, start, *_, **__: started.append((shown, start)))
    state = {"text": "The cars are old.", "removed": [[0, 1]], "layer": 2}
    command({"model": "bundled:tasks", "texts": f"http://127.0.0.1:1/?token=x#{json.dumps(state)}"})
    [(shown, start)] = started
    assert start == state | {"head": 0, "token": None}
    assert shown.loaded.name == "tasks"


def test_the_address_can_be_reached_as_soon_as_it_is_printed():
    class PrintedError(Exception):
        pass

    def tell(line):
        port = int(re.search(r":(\d+)/", line)[1])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        raise PrintedError

    conversation = Conversation(load_model("bundled:tasks", device="cpu"), Source("bundled:tasks"))
    with pytest.raises(PrintedError):
        serve(conversation, {"text": "The car"}, tell, opens=False)
