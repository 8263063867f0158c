"""The program of a worker, which the supervisor starts."""

from divgrpc_server.worker.process import run_worker

if __name__ == "__main__":
    run_worker()
