"""The contract: messages, and Python values as messages.

Lives here: `v1/*.proto` with the code that `make proto` generates, dataclasses as messages
(`records`), words as enum values (`words`), and numpy arrays as bytes (`arrays`). May import
protobuf, grpc and numpy. May not import divgrpc, the client or the server.
"""
