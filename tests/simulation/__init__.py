"""A simulator: the real code of the write path, with disk, clock, threads and death under one seed.

`python -m simulation` runs it. `scheduler` lets tasks take turns, `disk` makes the failpoints,
`actors` has the processes, and `history` checks what they saw.
"""
