"""One load generator process: `python -m divgrpc_client.load FD`.

FD is the file descriptor of the connection to the session, which runs in the parent process.
"""

import asyncio
import signal
import sys
from multiprocessing.connection import Connection

from divgrpc_client.load.generator import main, precise_loop

# Ctrl-C sends SIGINT to every process of the terminal. A generator ignores it, because the session
# tells it when to stop.
signal.signal(signal.SIGINT, signal.SIG_IGN)
with asyncio.Runner(loop_factory=precise_loop) as runner:
    runner.run(main(Connection(int(sys.argv[1]))))
