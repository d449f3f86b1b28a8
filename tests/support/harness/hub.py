"""A hub of models as huggingface_hub knows it, on this machine: one model with one commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

NAME = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = 10_000
"""Files over so many bytes are known by their SHA-256, others by git's hash."""


@dataclass
class Hub:
    """The hub.

    Args:
        files: what the model has.
        url: what HF_ENDPOINT is to be.
        requests: methods and paths of what was asked.
        stop_after: so many bytes of a large file are sent, and no more until `go_on`.
        stopped: set when so many have been sent.
        harm: a file that is sent otherwise than it is said to be.
    """

    files: dict[str, bytes]
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    stop_after: int | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    harm: str = ""

    def entries(self) -> list[dict]:
        """What it says about each file."""
        found = []
        for path, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {
                "type": "file",
                "path": path,
                "rfilename": path,
                "size": len(content),
                "oid": git,
                "blobId": git,
            }
            if len(content) > _LARGE:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "sha256": sha256, "size": len(content), "pointerSize": 130}
            found.append(entry)
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if path in (
            f"/api/models/{NAME}",
            *(f"/api/models/{NAME}/revision/{one}" for one in ("main", COMMIT)),
        ):
            self._json({"id": NAME, "sha": COMMIT, "siblings": self.hub.entries()})
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self._json(self.hub.entries())
        elif path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            self._file(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"), with_body=with_body)
        elif path.startswith(f"/api/models/{NAME}/"):
            self._json({"error": "Revision Not Found"}, 404, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _json(self, answer: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, name: str, *, with_body: bool) -> None:
        content = self.hub.files[name]
        etag = next(entry for entry in self.hub.entries() if entry["path"] == name)
        self.send_response(200)
        self.send_header("ETag", f'"{etag.get("lfs", etag)["oid"]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not with_body:
            return
        body = content
        if name == self.hub.harm:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if self.hub.stop_after is not None and len(body) > _LARGE and not self.hub.stopped.is_set():
            self.wfile.write(body[: self.hub.stop_after])
            self.wfile.flush()
            self.hub.stopped.set()
            self.hub.go_on.wait(60)
            body = body[self.hub.stop_after :]
        self.wfile.write(body)


@contextmanager
def serving(files: dict[str, bytes]) -> Generator[Hub]:
    """The hub, on a loopback port."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
