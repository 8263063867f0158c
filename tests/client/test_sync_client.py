"""The calls of the sync client are made from those of the async one."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_sync_calls_are_up_to_date(tmp_path: Path) -> None:
    """The committed file is what `make sync-client` makes."""
    runpy.run_path(str(ROOT / "client" / "sync_client.py"))["make"](tmp_path)
    committed = ROOT / "client" / "divgrpc_client" / "calls.py"
    assert committed.read_text() == (tmp_path / "calls.py").read_text()
