"""The program of a builder, which the supervisor starts if the fork server cannot."""

from divgrpc_server.builder.process import run_builder

if __name__ == "__main__":
    run_builder()
