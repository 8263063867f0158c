"""Ends a command on Ctrl-C, even if the signal arrives in the middle of gRPC's own code."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXIT_CODE: Final = 130
# Time for a command to cancel its call and to close its connections.
_GRACE_SECONDS: Final = 5.0


def report() -> None:
    """Write on standard error that the command was interrupted."""
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block that received SIGINT, whatever else it raised.

    gRPC's client is not safe against an exception between any two of its steps. It may then raise
    RuntimeError because a lock is not held, or wait forever for the end of a call that has not
    quite begun. Therefore a process that lives for `_GRACE_SECONDS` after the signal is ended.
    The block runs as it is outside the main thread, where no handler can be set, and in a process
    that ignores SIGINT or handles it in its own way.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def handle(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        timer.start()
        # A second Ctrl-C is not swallowed while the first is handled.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt

    def ignore(problem: "sys.UnraisableHookArgs") -> None:
        if not is_interrupted:
            hook(problem)

    timer = threading.Timer(_GRACE_SECONDS, _end)
    timer.daemon = True
    hook, sys.unraisablehook = sys.unraisablehook, ignore
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Exception:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.cancel()
        sys.unraisablehook = hook


def _end() -> None:
    report()
    os._exit(EXIT_CODE)
