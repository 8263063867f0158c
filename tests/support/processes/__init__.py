"""Real and simulated processes, and clients of them; it imports no other folder of `support`."""
