"""An object store on this machine that can fail: moto's S3 behind a proxy that answers 500, waits, or cuts the line."""

import http.client
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

BUCKET = "bucket"


class Proxy:
    """What stands between a client and the store.

    Attributes
    ----------
    fault
        Called with method, path and the number of the request; gives ``"500"``, ``"slow"``, ``"cut"`` (in the middle of
        what is sent or answered) or None.
    seen
        Method and path of all requests.
    """

    def __init__(self, host, port):
        self.target, self.fault, self.seen, self.faults = (host, port), lambda *_: None, [], 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self):
                with suppress(ConnectionError, ValueError):
                    super().handle_one_request()

            def log_message(self, *_):
                pass

            def _answer(self):
                proxy.answer(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request):
        self.seen.append((request.command, request.path))
        fault = self.fault(request.command, request.path, len(self.seen))
        self.faults += fault is not None
        size = int(request.headers.get("Content-Length", 0))
        if fault == "cut" and size > 1:
            request.rfile.read(size // 2)
            self._cut(request)
            return
        body = self._body(request, size)
        if fault == "500":
            self._write(request, 500, [], b"<Error><Code>InternalError</Code></Error>")
            return
        if fault == "slow":
            time.sleep(1.0)
        inner = http.client.HTTPConnection(*self.target)
        headers = {key: value for key, value in request.headers.items() if key.lower() != "expect"}
        inner.request(request.command, request.path, body, headers)
        found = inner.getresponse()
        data = found.read()
        self._write(request, found.status, found.getheaders(), data, cut=fault == "cut")
        inner.close()

    def _body(self, request, size):
        if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return request.rfile.read(size)
        data = b""
        while length := int(request.rfile.readline().split(b";")[0], 16):
            data += request.rfile.read(length)
            request.rfile.readline()
        while request.rfile.readline().strip():
            pass
        del request.headers["Transfer-Encoding"]
        return data

    def _write(self, request, status, headers, data, *, cut=False):
        request.send_response_only(status)
        kept = [one for one in headers if one[0].lower() not in {"content-length", "transfer-encoding", "connection"}]
        length = next((value for key, value in headers if key.lower() == "content-length"), len(data))
        for key, value in (*kept, ("Content-Length", str(length))):
            request.send_header(key, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self._cut(request)

    @staticmethod
    def _cut(request):
        with suppress(OSError):
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
        request.close_connection = True


@contextmanager
def s3():
    """A store with one bucket, named in the environment; gives its proxy."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(*server.get_host_and_port())
    named = {
        "AWS_ENDPOINT_URL": proxy.endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",  # so that it is we who try again
    }
    try:
        with patch.dict(os.environ, named):
            inner = http.client.HTTPConnection(*proxy.target)
            inner.request("POST", "/moto-api/reset")  # what servers of this process had before
            inner.getresponse().read()
            inner.close()
            type(fsspec.filesystem("s3")).clear_instance_cache()  # they know other servers
            fsspec.filesystem("s3").mkdir(BUCKET)
            yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        server.stop()
