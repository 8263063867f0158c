"""Ctrl-C in the middle of gRPC's own code."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from divgrpc_client.cli import interrupts
from support.processes.scripted_server import ScriptedIndex

# Builds an index, with an interrupt between the start of gRPC's call and the start of the thread
# that receives its events. The channel then waits forever for the end of the call.
_HANGING_BUILD = """
import signal, sys
import grpc._channel
from divgrpc_client.cli import interrupts, main

def interrupt(_state):
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
grpc._channel._run_channel_spin_thread = interrupt
interrupts._GRACE_SECONDS = 0.5
sys.exit(main.main(["build", "late", sys.argv[1], "--target", sys.argv[2]]))
"""


def test_a_call_that_cannot_be_closed_ends(
    script: ScriptedIndex, target: str, tmp_path: Path
) -> None:
    script.silent = True
    np.save(tmp_path / "vectors.npy", np.ones((4, 3), np.float32))
    result = subprocess.run(
        [sys.executable, "-P", "-c", _HANGING_BUILD, tmp_path / "vectors.npy", target],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_an_error_that_an_interrupt_causes_is_an_interrupt() -> None:
    def fail() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("cannot release un-acquired lock") from None

    with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
        fail()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="mine"), interrupts.interruptible():
        raise RuntimeError("mine")


def test_a_process_that_ignores_interrupts_still_does() -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_another_thread_sets_no_handler() -> None:
    handlers = []

    def run() -> None:
        with interrupts.interruptible():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
