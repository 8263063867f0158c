"""Demonstrations and reports; they reach the engine through the client alone."""
