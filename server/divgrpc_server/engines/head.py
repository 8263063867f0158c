"""Knows whether the head of a cluster answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_ANSWER_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 2.0


async def watch_head(
    ask: Callable[[], Awaitable[object]],
    note: Callable[[bool], None],
    errors: tuple[type[Exception], ...],
) -> None:
    """Ask the head again and again, until this is cancelled.

    ask: asks the head something; may wait for as long as the head is gone.
    note: called with whether the head answers, at least once for each question.
    errors: what `ask` raises if the head is gone.
    """
    while True:
        question = asyncio.ensure_future(ask())
        replied, _ = await asyncio.wait((question,), timeout=_ANSWER_SECONDS)
        if not replied:
            note(False)
        try:
            await question
        except errors:
            note(False)
        else:
            note(True)
        await asyncio.sleep(_LOOK_SECONDS)
