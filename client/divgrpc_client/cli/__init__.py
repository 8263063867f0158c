"""The command line: options, commands, how it ends.

May import everything else of the client. Nothing else of the client may import it.
"""
