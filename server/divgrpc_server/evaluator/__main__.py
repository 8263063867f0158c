"""The program of an evaluator, which the supervisor starts."""

from divgrpc_server.evaluator.process import run_evaluator

if __name__ == "__main__":
    run_evaluator()
