"""Links between a server that routes and its shard servers, which are cut and joined again."""

import os
import subprocess
import sys

from support.loads import partitions
from support.processes import toolchains


def test_no_query_is_lost_while_a_link_is_down() -> None:
    """Hosts are network namespaces, which root alone may make."""
    command = [sys.executable, "-m", partitions.__name__, "--short"]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run(
        command, env=os.environ | path, capture_output=True, text=True, check=False
    )
    if outcome.returncode == partitions.CANNOT:
        toolchains.skip("namespaces", outcome.stdout)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
