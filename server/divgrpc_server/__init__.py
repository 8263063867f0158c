"""The server: one package for each kind of process, and the code that processes share.

The processes are `supervisor`, `front`, `worker`, `builder` and `evaluator`. A process must not
import another process. The shared code is in `codec`, `ipc`, `logging` and `config`. The server may
import the core and the contract. It must not import the client.
"""
