"""The project's own experiments: the demonstration, the paper's tables and figures.

Lives here: data sets, queries learned from them, runs that measure, pages with the measurements. It
is not in the wheel: run it from a clone, `python -m divgrpc_lab` or `make demo`. May import the
public client, its tables and report pages, and the public core. May not import the server, kernels
or anything else below the public interfaces; nothing may import it but tests.
"""
