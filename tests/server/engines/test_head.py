"""What an engine knows of the head of its cluster."""

import asyncio

import pytest

from divgrpc_server.engines import head
from divgrpc_server.engines.head import watch_head


def test_a_head_that_is_silent_or_gone_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question waits for it until it is back."""
    monkeypatch.setattr(head, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(head, "_LOOK_SECONDS", 0.0)
    answers: list[bool] = []
    questions = 0

    async def run() -> None:
        is_back, is_over = asyncio.Event(), asyncio.Event()

        async def ask() -> None:
            nonlocal questions
            questions += 1
            if questions == 2:
                await is_back.wait()
            if questions == 3:
                raise ConnectionError
            if questions == 5:
                is_over.set()
                await asyncio.sleep(600)

        def note(answer: bool) -> None:
            answers.append(answer)
            if answers == [True, False]:
                asyncio.get_running_loop().call_later(0.1, is_back.set)

        watch = asyncio.create_task(watch_head(ask, note, (ConnectionError,)))
        await asyncio.wait_for(is_over.wait(), 60)
        watch.cancel()

    asyncio.run(run())
    assert answers == [True, False, True, False, True]


def test_other_errors_end_the_watch() -> None:
    async def ask() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(watch_head(ask, lambda _: None, (ConnectionError,)))
