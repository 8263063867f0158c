"""Fuzzing of everything that reads bytes from outside; see `fuzzing.targets`."""
