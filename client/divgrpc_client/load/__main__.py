"""One load generator process: `python -m divgrpc_client.load FD`.

FD is the file descriptor of the connection to the session, which runs in the parent process.
"""

import asyncio
import os
import signal
import sys
from multiprocessing.connection import Connection

from divgrpc_client.load.generator import main, precise_loop

# Ctrl-C sends SIGINT to every process of the terminal. A generator ignores it, because the session
# tells it when to stop.
signal.signal(signal.SIGINT, signal.SIG_IGN)
# The descriptor has the number that it has in the parent process. `select`, which the loop calls,
# takes only numbers below 1,024, and a copy gets the lowest free one.
inherited = int(sys.argv[1])
connection = Connection(os.dup(inherited))
os.close(inherited)
with asyncio.Runner(loop_factory=precise_loop) as runner:
    runner.run(main(connection))
