"""Code that several tests or benchmarks share; it may import the product and `reference`."""
