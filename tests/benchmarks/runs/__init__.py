"""The benchmarks: quality in process, other libraries, and the server. None imports another."""
