"""What the server costs: calls, overload, starts, builds, memory, evaluations, killed workers."""
