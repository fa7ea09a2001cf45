"""The log that a person reads: vLLM's two hundred lines become a handful, failures are never hidden."""

import datetime
import io
from pathlib import Path

import pytest
from honcho.printer import Message

from deploy.local.log import LogPrinter, readable, rotate

VLLM = "(EngineCore pid=12) {level} 11-30 21:08:27 [core.py:402] {text}"


@pytest.mark.parametrize(
    ("process", "line", "shown"),
    [
        ("engine", "steerguard: ready after 22 s", "ready after 22 s"),
        ("engine", VLLM.format(level="INFO", text="Loading weights took 0.84 seconds"), "weights loaded in 0.84 s"),
        ("engine", VLLM.format(level="INFO", text="Using LBHNC KV cache layout."), None),
        ("engine", VLLM.format(level="WARNING", text="Triton is not installed."), None),
        ("engine", VLLM.format(level="ERROR", text="ValueError: too little memory"), "ValueError: too little memory"),
        ("engine", VLLM.format(level="ERROR", text='  File "core.py", line 12'), None),
        ("engine", "  warnings.warn(", None),
        (
            "engine",
            "RuntimeError: core failed",
            "RuntimeError: core failed",
        ),
        ("valkey", "26677:M 30 Nov 2026 21:21:02.242 * Ready to accept connections unix", "ready"),
        ("valkey", "26677:M 30 Nov 2026 21:21:02.242 * Server initialized", None),
        (
            "valkey",
            "26677:M 30 Nov 2026 21:21:02.242 # Can't open the file",
            "Can't open the file",
        ),
        ("web", "INFO:     Started server process [123]", None),
        ("web", "21:08:27 [info     ] request method=GET", "request method=GET"),
        ("web", "21:08:27 [warning  ] slow", "[warning  ] slow"),
        (
            "web",
            "22:39:01 [info] request [gateway] completion_tokens=20 engine=local key=ppmbs844 method=POST ms=745.1 "
            "outcome=completed path=/v1/chat/completions prompt_tokens=35 request_id=req_7e revision=harbor/sunny@1 "
            "status=200 tenant=harbor",
            "POST · /v1/chat/completions · 200 · harbor/sunny@1 · 35 → 20 tokens · 745 ms",
        ),
        (
            "web",
            "22:39:01 [info] request [gateway] completion_tokens=None engine=None key=ppmbs844 method=POST ms=0.1 "
            "outcome=invalid_value path=/v1/completions prompt_tokens=None request_id=req_fe revision=None status=400 "
            "tenant=harbor",
            "POST · /v1/completions · 400 · invalid_value · harbor · 0 ms",
        ),
        ("web", "21:08:27 [info] request [web] method=GET ms=12 path=/ status=200", "GET · / · 200 · 12 ms"),
        ("web", "22:36:40 [warning] engine did not answer [gateway] engine=local error='It may be starting.'", None),
        (
            "worker",
            "22:33:13 [info] engine status [engines] detail= engine=local status=ready",
            "engine local is ready",
        ),
        (
            "worker",
            "22:33:12 [info] engine status [engines] detail='sending 10 vectors' engine=local status=starting",
            "engine local is starting: sending 10 vectors",
        ),
        ("demo", "      Making vectors: 3/10 pirate", "Making vectors: 3/10 pirate"),
        ("worker", "", None),
    ],
)
def test_lines_are_reduced_to_what_a_person_wants(process: str, line: str, shown: str | None) -> None:
    assert readable(process, line) == shown


@pytest.fixture
def printer(tmp_path: Path) -> LogPrinter:
    return LogPrinter(io.StringIO(), tmp_path, verbose=False)


def say(printer: LogPrinter, name: str, text: str) -> None:
    printer.write(Message(type="line", data=text.encode(), time=datetime.datetime.now(), name=name, colour="32"))


def test_everything_goes_to_the_file(printer: LogPrinter, tmp_path: Path) -> None:
    say(printer, "engine", "Loading safetensors checkpoint shards:   0%\n")
    assert "shards" in (tmp_path / "engine.log").read_text()
    assert printer.output.getvalue() == ""


def test_the_first_to_stop_by_itself_is_remembered_with_its_last_lines(printer: LogPrinter) -> None:
    say(printer, "engine", "RuntimeError: no room")
    say(printer, "system", "engine stopped (rc=1)")
    say(printer, "system", "sending SIGTERM to web (pid 7)")
    say(printer, "web", "Traceback (most recent call last)")
    say(printer, "system", "web stopped (rc=-15)")
    assert printer.first_stopped == ("engine", 1)
    assert printer.tail("engine") == ["RuntimeError: no room"]
    assert "Traceback" not in printer.output.getvalue(), "noise of stopping stays in the file"


def test_the_first_errors_are_kept_without_their_tracebacks(printer: LogPrinter) -> None:
    say(printer, "engine", VLLM.format(level="ERROR", text="Traceback (most recent call last):"))
    say(printer, "engine", VLLM.format(level="ERROR", text="RuntimeError: no weights in /models/empty"))
    say(printer, "engine", "RuntimeError: Engine core initialization failed.")
    assert printer.errors("engine") == [
        "RuntimeError: no weights in /models/empty",
        "RuntimeError: Engine core initialization failed.",
    ]


def test_the_demo_may_end_and_a_killed_process_is_said_to_be_killed(printer: LogPrinter) -> None:
    say(printer, "system", "demo stopped (rc=0)")
    assert printer.output.getvalue() == ""
    say(printer, "system", "web stopped (rc=-9)")
    assert "web was killed (SIGKILL); stopping the others" in printer.output.getvalue()
    assert printer.first_stopped == ("web", -9)


def test_a_demo_that_fails_stops_the_rest(printer: LogPrinter) -> None:
    say(printer, "demo", "CommandError: MODEL=/nowhere has no readable configuration")
    say(printer, "system", "demo stopped (rc=1)")
    assert printer.first_stopped == ("demo", 1)
    assert printer.errors("demo") == ["CommandError: MODEL=/nowhere has no readable configuration"]


def test_the_last_runs_logs_are_kept_beside_the_new_ones(tmp_path: Path) -> None:
    for run in ("first", "second", "third"):
        rotate(tmp_path)
        say(LogPrinter(io.StringIO(), tmp_path, verbose=False), "web", run)
    assert (tmp_path / "web.log").read_text() == "third\n"
    assert (tmp_path / "web.log.1").read_text() == "second\n"


def test_stopping_on_request_blames_no_one(printer: LogPrinter) -> None:
    say(printer, "system", "SIGINT received")
    say(printer, "system", "web stopped (rc=0)")
    assert printer.first_stopped is None
