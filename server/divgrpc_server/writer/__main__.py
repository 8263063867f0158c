"""The program of the writer, which the supervisor starts."""

from divgrpc_server.writer.process import run_writer

if __name__ == "__main__":
    run_writer()
