"""The one log of `make run`: every process's lines, prefixed, colored and reduced to what a person wants to know.

honcho hands each line to its printer. This one writes all of it to DATA_DIR/logs/<process>.log and shows a readable
part: a dozen lines of vLLM's start instead of two hundred. VERBOSE=1 shows everything.
"""

import re
from collections import deque
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from honcho.printer import Message, Printer

from deploy.local.lifetime import how_it_ended

SYSTEM = "system"
# The one process that ends when its work is done.
DEMO = "demo"
TAIL_LINES = 12
ERRORS_KEPT = 3
# Lines of our own in a process that is otherwise somebody else's program.
OWN_LINE = "steerguard: "

_VLLM_LINE = re.compile(
    r"^\((?P<process>[\w-]+) pid=\d+\) (?P<level>[A-Z]+) \d\d-\d\d [\d:]+ \[(?P<file>[\w./]+):\d+\] ?(?P<text>.*)$"
)
_VLLM_NEWS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^Starting to load model"), "loading the weights"),
    (re.compile(r"^Loading weights took (?P<s>[\d.]+) seconds"), "weights loaded in {s} s"),
    (re.compile(r"^Warming up model for the compilation"), "compiling; about a minute the first time"),
    (re.compile(r"^[GC]PU KV cache size: (?P<tokens>[\d,]+) tokens"), "room for {tokens} tokens of KV cache"),
    (re.compile(r"^init engine .* took (?P<s>[\d.]+) s"), "engine core up, warmed in {s} s"),
)
# What went wrong, in a word and a reason; the frames of a traceback stay in the file.
_FAILURE = re.compile(r"^[\w.]*(Error|Exception|Exit|Interrupt): |^Killed\b|\bFATAL\b")
_VALKEY_LINE = re.compile(r"^\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ (?P<mark>[*#.-]) (?P<text>.*)$")
# Lines of the product's own that come as fields; the file has all of them.
_EVENT = re.compile(r"^(?P<event>request|engine status)\s+\[(?:gateway|web|engines)\]\s+(?P<fields>.*)$")
_FIELD = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\S*)")
# The log has its own clock, and lines of the usual kind need no label.
_PREFIX = re.compile(r"^(\d\d:\d\d:\d\d )?(\[info\s*\] |INFO:\s+)?")
_DULL = re.compile(
    r"^\s*$|Started server process|Waiting for application|Application startup|Uvicorn running|Shutting down"
    r"|Finished server process|Discarding revoked task|^\s+warnings\.warn\(|(Deprecation|Future|User)Warning: "
    # Its reason: the request's own line follows and says how it ended.
    r"|\] engine did not answer\s+\[gateway\]"
)


def readable(process: str, line: str) -> str | None:
    """What to show of one line of a process, or None when it belongs in the file only."""
    if line.startswith(OWN_LINE):
        return line.removeprefix(OWN_LINE)
    if process == "engine":
        return _readable_vllm(line)
    if process == "valkey":
        return _readable_valkey(line)
    if _DULL.search(line):
        return None
    text = _PREFIX.sub("", line)
    found = _EVENT.match(text)
    if found is None:
        return text.strip() if process == DEMO else text
    fields = {name: value.strip("'\"") for name, value in _FIELD.findall(found["fields"])}
    return _readable_request(fields) if found["event"] == "request" else _readable_status(fields)


def _readable_status(fields: dict[str, str]) -> str:
    """A sentence about an engine: its name, what it is now, and why, if there is more to say."""
    sentence = f"engine {fields.get('engine', '?')} is {fields.get('status', '?')}"
    return f"{sentence}: {fields['detail']}" if fields.get("detail") else sentence


def _readable_request(fields: dict[str, str]) -> str:
    """One line that fits a terminal: what was asked of whom, how it ended, tokens in and out, and how long it took."""
    said = {name: value for name, value in fields.items() if value != "None"}
    parts = [said.get("method", ""), said.get("path", ""), said.get("status", "")]
    if said.get("outcome", "completed") != "completed":
        parts.append(said.get("outcome", ""))
    parts.append(said.get("revision", said.get("tenant", "")))
    if "completion_tokens" in said:
        parts.append(f"{said.get('prompt_tokens', '?')} → {said['completion_tokens']} tokens")
    parts.append(f"{float(said.get('ms', 0)):.0f} ms")
    return " · ".join(part for part in parts if part)


def _readable_vllm(line: str) -> str | None:
    found = _VLLM_LINE.match(line)
    if found is None:
        return line if _FAILURE.search(line) else None
    text = found["text"]
    if found["level"] in ("ERROR", "CRITICAL"):
        return None if text.startswith((" ", "Traceback ", "During handling")) or not text.strip() else text
    if "steerguard" in found["file"] or text.lower().startswith("steerguard"):
        return text
    for pattern, news in _VLLM_NEWS:
        if said := pattern.search(text):
            return news.format(**said.groupdict())
    return None


def _readable_valkey(line: str) -> str | None:
    found = _VALKEY_LINE.match(line)
    if found is None:
        return line if _FAILURE.search(line) else None
    if found["text"].startswith("Ready to accept connections"):
        return "ready"
    # The kernel setting it asks for matters to servers with much data, not here.
    return found["text"] if found["mark"] == "#" and "overcommit" not in found["text"] else None


def rotate(folder: Path) -> None:
    """Keep what the last run wrote, as NAME.log.1, so that this one's logs begin empty."""
    for log in folder.glob("*.log"):
        log.replace(log.with_name(f"{log.name}.1"))


class LogPrinter(Printer):  # type: ignore[misc]  # honcho has no types
    """honcho's printer with a file per process, the filter above, and a memory for how things end."""

    def __init__(self, output: IO[str], folder: Path, *, verbose: bool) -> None:
        super().__init__(output)
        self.folder = folder
        self.verbose = verbose
        self.stopping = False
        self.first_stopped: tuple[str, int] | None = None
        self._files: dict[str, TextIOWrapper] = {}
        self._tails: dict[str, deque[str]] = {}
        self._errors: dict[str, list[str]] = {}

    def write(self, message: Message) -> None:
        """Record and perhaps show one message: some lines of one process, or of honcho itself."""
        data = message.data.decode(errors="replace") if isinstance(message.data, bytes) else message.data
        for line in data.splitlines():
            if message.name == SYSTEM:
                shown = self._hear(line)
            else:
                self._record(message.name, line)
                shown = None if self.stopping else line if self.verbose else readable(message.name, line)
            if shown is not None:
                super().write(message._replace(data=shown))

    def tail(self, process: str) -> list[str]:
        """The last lines of a process, whether shown or not."""
        return list(self._tails.get(process, ()))

    def errors(self, process: str) -> list[str]:
        """The first errors that a process named, oldest first: the rest mostly follow from them."""
        return self._errors.get(process, [])

    def _record(self, process: str, line: str) -> None:
        if process not in self._files:
            self._files[process] = (self.folder / f"{process}.log").open("a", buffering=1)
            self._tails[process] = deque(maxlen=TAIL_LINES)
        self._files[process].write(line + "\n")
        if line.strip():
            self._tails[process].append(line)
        found = _VLLM_LINE.match(line)
        text = found["text"] if found else line
        errors = self._errors.setdefault(process, [])
        if _FAILURE.search(text) and text not in errors and len(errors) < ERRORS_KEPT:
            errors.append(text)

    def _hear(self, line: str) -> str | None:
        """honcho tells only its printer what happens, in words: note how it ends, reword the rest."""
        if line.endswith(" received"):
            self.stopping = True
            return "stopping; this takes a few seconds"
        if stopped := re.match(r"(?P<name>\w+) stopped \(rc=(?P<code>-?\d+)\)", line):
            name, code = stopped["name"], int(stopped["code"])
            if name == DEMO and code == 0:
                return None  # what it said last says so
            if not self.stopping:
                self.stopping = True
                self.first_stopped = (name, code)
                return f"{name} {how_it_ended(code)}; stopping the others"
            return f"{name} stopped"
        if re.match(r"sending SIG", line):
            return None
        return line
