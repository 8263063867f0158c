"""The project's experiments: the demonstration, and the paper's tables and figures.

This package holds data sets, queries learned from them, runs that measure, and pages with the
measurements. It is not in the wheel. Run it from a clone with `python -m divgrpc_lab` or `make
demo`. It may import the public client, its tables and report pages, and the public core. It may not
import the server, kernels or anything else below the public interfaces. Only tests may import it.
"""
