"""Readers of input files, and writers of tables, JSON and CSV.

This package reads vectors and labels from files and writes tables for terminals, JSON and CSV. It
may import messages, the contract's arrays, numpy, rich, and the core's types, errors and
parameters. It may not open a connection.
"""
