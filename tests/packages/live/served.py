"""A server of a live view in a thread."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from attnscope_live.server import application

TOKEN = "secret"  # noqa: S105


@contextmanager
def serving(conversation, start):
    """Serve a model; yields its port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = application(conversation, start, TOKEN, port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield port
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)
