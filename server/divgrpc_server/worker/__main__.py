"""The program of a worker, which the supervisor starts."""

from divgrpc_server.worker.process import Worker, run_process

if __name__ == "__main__":
    run_process("worker", Worker)
