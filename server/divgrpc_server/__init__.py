"""The server: one folder per process, and what the processes share.

Processes: `supervisor`, `front`, `worker`, `builder`, `evaluator`. Shared: `codec`, `ipc`,
`logging`, `config`. May import the core and the contract. May not import the client. A process may
not import another process.
"""
