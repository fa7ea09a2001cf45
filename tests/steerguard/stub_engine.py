"""An HTTP server that answers as vLLM with the plugin does, from a rule in place of a model.

It stands in for the engine where a test is about what is asked and how answers are judged; that a real engine answers
so is tested with one.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from steerguard.vectors import read_vector

MODEL = "stub-model"
Rule = Callable[[list[dict[str, str]], list[dict[str, Any]]], str]
"""Messages and blend to an answer."""

# One for all stubs, as for all engines of a model: another one goes on where one was left.
_vocabulary: list[str] = []
_vocabulary_lock = threading.Lock()


class StubEngine:
    """Used as a context manager; everything that was asked is in `asked`."""

    def __init__(
        self,
        rule: Rule,
        *,
        logprob: Callable[[str], float] = lambda word: -1.0,
        norms: dict[int, float] | None = None,
        hidden_size: int = 8,
        key: str = "",
    ) -> None:
        self.rule = rule
        self.logprob = logprob
        self.norms = norms or {block: 100.0 for block in range(10)}
        self.hidden_size = hidden_size
        self.key = key
        self.asked: list[dict[str, Any]] = []
        self.vectors: set[str] = set()
        self.failures: Counter[str] = Counter()
        """Path -> how many of its next requests are answered 503."""
        self.on_answer: Callable[[int], None] = lambda count: None
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "StubEngine":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def chats(self) -> list[dict[str, Any]]:
        return [body for body in self.asked if "messages" in body]

    def _ids(self, text: str) -> list[int]:
        with _vocabulary_lock:
            for word in text.split():
                if word not in _vocabulary:
                    _vocabulary.append(word)
            return [_vocabulary.index(word) for word in text.split()]

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "x"}]}
        if path == "/v1/steering":
            norms = {str(block): norm for block, norm in self.norms.items()}
            state = {"model": MODEL, "num_layers": len(norms), "hidden_size": self.hidden_size, "norms": norms}
            return 200, {**state, "dose_ceiling": 8.0}
        if path.startswith("/v1/steering/vectors/"):
            return self._change_vectors(method, path.rsplit("/", 1)[1], body)
        asked = json.loads(body)
        with self._lock:
            self.asked.append(asked)
        if path == "/v1/completions":
            return 200, self._complete(asked)
        answer = self._chat(asked)
        self.on_answer(len(self.chats()))
        return 200, answer

    def _change_vectors(self, method: str, digest: str, body: bytes) -> tuple[int, object]:
        if method == "DELETE":
            self.vectors.remove(digest)
            return 200, {"digest": digest, "deleted": True}
        assert read_vector(body).digest == digest
        created = digest not in self.vectors
        self.vectors.add(digest)
        return 200, {"digest": digest, "created": created}

    def _chat(self, asked: dict[str, Any]) -> dict[str, Any]:
        spec = json.loads(asked.get("vllm_xargs", {}).get("steerguard", '{"blend": []}'))
        assert all(component["vector"] in self.vectors for component in spec["blend"])
        text = self.rule(asked["messages"], spec["blend"])
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        answer: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 0, "model": MODEL}
        if asked.get("return_token_ids"):
            choice["token_ids"] = self._ids(f"{text} <end>")
            answer["prompt_token_ids"] = self._ids(" ".join(message["content"] for message in asked["messages"]))
        return {**answer, "choices": [choice]}

    def _complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        ids = asked["prompt"]
        told: list[Any] = [{str(one): {"logprob": self.logprob(_vocabulary[one])}} for one in ids]
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "length",
            "logprobs": None,
            "prompt_logprobs": [None, *told[1:]],
        }
        return {"id": "1", "object": "text_completion", "created": 0, "model": MODEL, "choices": [choice]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}":
                    self._send(401, {"error": {"message": "wrong key", "type": "Unauthorized", "code": 401}})
                    return
                with engine._lock:
                    fails = engine.failures[self.path] > 0
                    engine.failures[self.path] -= fails
                if fails:
                    self._send(503, {"error": {"message": "busy", "type": "Unavailable", "code": 503}})
                    return
                self._send(*engine._answer(self.command, self.path, body))

            do_GET = do_POST = do_PUT = do_DELETE = _serve

            def _send(self, status: int, answer: object) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler
