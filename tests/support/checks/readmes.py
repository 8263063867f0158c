"""The README files of integrations, whose code blocks run in the environment of the integration."""

import subprocess
import sys
from pathlib import Path

from support.checks.documentation import ADDRESSES, blocks

_RUN_SECONDS = 120.0


def run_blocks(readme: Path, target: str, folder: Path) -> int:
    """Run the Python blocks of a file, compare what they print, and return their number.

    The output must equal the text block that follows the words "It prints:".
    """
    script = output = ""
    count = 0
    for block in blocks(readme.name, readme.read_text()):
        if block.language == "python":
            count += 1
            is_continued = block.mark == "continues"
            script = script + block.text if is_continued else block.text
            before = output if is_continued else ""
            output = _run(script, target, folder)
            news = output.removeprefix(before)
        elif block.language == "text" and block.before.endswith("It prints:"):
            assert news == block.text, f"{block.place} should show:\n{news}"
    return count


def _run(script: str, target: str, folder: Path) -> str:
    for address in ADDRESSES:
        script = script.replace(address, target)
    path = folder / "block.py"
    path.write_text(script)
    command = [sys.executable, "-W", "error", str(path)]
    process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=_RUN_SECONDS
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
