"""The sync client is made from the async one."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CLIENT = ROOT / "client" / "divgrpc_client"


@pytest.mark.parametrize("name", ["client.py", "calls.py"])
def test_the_sync_client_is_up_to_date(name: str, tmp_path: Path) -> None:
    """The committed file is what `make sync-client` makes."""
    runpy.run_path(str(ROOT / "client" / "sync_client.py"))["make"](tmp_path)
    assert (CLIENT / name).read_text() == (tmp_path / name).read_text()
