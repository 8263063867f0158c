"""Checks of errors, documentation and time limits; it imports no other folder of `support`."""
