"""How runs of load end where something else ends or stops, and what does not fit is refused."""

import json
import os
import struct
from multiprocessing import Pipe
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc_client.cli import main
from divgrpc_client.load import Call, Session, Settings, constant, fleet, words
from divgrpc_client.load.orders import Ended
from divgrpc_client.load.quality import compare_with_exact
from divgrpc_client.load.recordings import Recording
from divgrpc_client.load.results import build_report, write_report
from divgrpc_client.load.sessions import Trialled
from support.scripted_server import ScriptedIndex

QUERIES = np.eye(6, dtype=np.float32)
COMPARED = Settings(warm_up=0, channels=2, quality=1)
CALLS = [Call("images", QUERIES)]


def test_a_server_that_refuses_exact_search_costs_the_run_nothing(
    script: ScriptedIndex, target: str
) -> None:
    """The report is there, with how many were refused and why."""
    with Session(target, CALLS, COMPARED) as session:
        trialled = session.run(constant(40, 1))
        script.failures = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 40
        report = build_report(session, trialled)
        report["quality"] = compare_with_exact(session, trialled.recording.replies)
    assert report["quality"]["unanswered"] == 40
    assert "on command" in report["quality"]["refusal"]
    assert report["quality"]["refusal"] in words.quality(report)


def test_after_an_interruption_nothing_is_compared(script: ScriptedIndex, target: str) -> None:
    """Who wants the end gets it: the server is not asked five hundred times more."""
    with Session(target, CALLS, COMPARED) as session:
        trialled = session.run(constant(40, 1))
        asked = script.calls["Query"]
        session.interrupt()
        assert compare_with_exact(session, trialled.recording.replies) is None
    assert script.calls["Query"] == asked


def test_a_generator_that_stops_in_a_message_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads waits for the rest of it only so long."""
    monkeypatch.setattr(fleet, "_MESSAGE_SECONDS", 1)
    ours, theirs = Pipe()
    with ours, theirs:
        fleet._limit(ours)
        theirs.send(Ended())
        assert fleet._received(ours) == Ended()
        os.write(theirs.fileno(), struct.pack("!i", 1_000) + b"cut")
        with pytest.raises(UnavailableError, match="middle"):
            fleet._received(ours)


def test_a_half_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a sentence, whichever part is missing or is something else; void ones end with 4."""
    seen = Recording(0, 4, calls=1, processes=1, timeout=10)
    whole = build_report(Session("localhost:1", CALLS), Trialled(constant(10, 4), 0, seen))
    write_report(whole, tmp_path / "whole.json")
    both = ["load", "--compare", str(tmp_path / "whole.json")]
    assert main.main([*both, str(tmp_path / "whole.json")]) == 4
    for part in ("latency", "histogram", "errors", "setting", "void", "environment", "quality"):
        rest = {name: own for name, own in whole.items() if name != part}
        for cut in (rest, {**rest, part: {}}, {**rest, part: "eJw"}):
            (tmp_path / "cut.json").write_text(json.dumps(cut))
            assert main.main([*both, str(tmp_path / "cut.json")]) in (2, 4)
            assert "Traceback" not in capsys.readouterr().err


def test_what_would_take_a_generators_memory_is_refused() -> None:
    """A thousand kinds of call is most, all of them share one room, and tries are whole."""
    with pytest.raises(InvalidArgumentError, match="kinds of call"):
        Session("localhost:1", CALLS * 1_001)
    wide = [Call("images", np.zeros((3, 3_000_000), np.float32))] * 4
    session = Session("localhost:1", wide)
    assert [len(messages) for messages in session.messages] == [2] * 4
    with pytest.raises(InvalidArgumentError, match="retries"):
        Settings(retries=1.5)  # type: ignore[arg-type]
