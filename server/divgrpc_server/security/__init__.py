"""Who may connect and what they may do: certificates, tokens, roles and quotas.

This package may import the core, `config`, `codec` and `logging`. Only `front` uses gRPC, so the
supervisor can check certificates and tokens before it starts other processes.
"""
