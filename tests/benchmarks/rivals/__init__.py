"""Other libraries at equal quality, in process and as a service."""
