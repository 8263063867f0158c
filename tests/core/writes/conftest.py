"""Fixtures of the tests of writes."""

import os

import pytest


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out syncs, which take most of the time of a small merge."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
