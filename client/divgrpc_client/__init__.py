"""The caller: sync and async client, and the command line."""
