"""Make the calls of the sync client from those of the async one: `make sync-client`.

The async file is the source. This program drops `async` and `await`, and replaces the names that
differ. What else differs between the two stacks is in `divgrpc_client.rpc.async_stack` and
`sync_stack`, which have the same interface.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_CLIENT: Final = Path(__file__).parent / "divgrpc_client"
# Regular expressions and what replaces their matches, in this order.
_REPLACEMENTS: Final = (
    (r"`make sync-client` makes `\S+` from this file", "Made by `make sync-client`; do not edit"),
    (r" *import grpc\.aio\n\n", ""),
    (r" \| AsyncIterable\[VectorsLike\]", ""),
    (r"\bAsyncIterable, ", ""),
    (r"asyncio\.sleep", "time.sleep"),
    (r"import asyncio", "import time"),
    (r"grpc\.aio\b", "grpc"),
    (r"DiverseIndexAsyncStub", "DiverseIndexStub"),
    (r"\basync_(stack)", r"sync_\1"),
    (r"\bAsync(Iterator)", r"\1"),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
    (r"\baiter\(", "iter("),
    (r"\b(async|await) ", ""),
)
_RUFF: Final = (sys.executable, "-m", "ruff")


def make(folder: Path) -> None:
    """Write the calls of the sync client into a folder."""
    text = (_CLIENT / "async_calls.py").read_text()
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    target = folder / "calls.py"
    target.write_text(text)
    fix = ("check", "--quiet", "--fix", "--unsafe-fixes", "--select", "I,F401,UP028")
    for command in (fix, ("format", "--quiet")):
        subprocess.run([*_RUFF, *command, target], check=True)  # noqa: S603  # our own command


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else _CLIENT)
