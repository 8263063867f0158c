"""Loads of calls against a running server, and the checks of their answers."""
