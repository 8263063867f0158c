"""One process of a run: `python -m divgrpc_client.load FD`, the descriptor of its connection."""

import asyncio
import signal
import sys
from multiprocessing.connection import Connection

from divgrpc_client.load.generator import main, precise_loop

# Ctrl-C goes to every process of a terminal; the session says when to stop.
signal.signal(signal.SIGINT, signal.SIG_IGN)
with asyncio.Runner(loop_factory=precise_loop) as runner:
    runner.run(main(Connection(int(sys.argv[1]))))
