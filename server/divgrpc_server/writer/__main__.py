"""The program of the writer, which the supervisor starts."""

from divgrpc_server.worker.process import run_process
from divgrpc_server.writer.process import Writer

if __name__ == "__main__":
    run_process("writer", Writer)
