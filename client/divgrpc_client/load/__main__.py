"""One process of a run: `python -m divgrpc_client.load FD`, with the connection that orders it."""

import asyncio
import signal
import sys
from multiprocessing.connection import Connection

from divgrpc_client.load.generator import main, precise_loop

# Ctrl-C goes to every process of a terminal; the one that reports says when to stop.
signal.signal(signal.SIGINT, signal.SIG_IGN)
with asyncio.Runner(loop_factory=precise_loop) as runner:
    runner.run(main(Connection(int(sys.argv[1]))))
