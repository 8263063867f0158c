"""A LlamaIndex node postprocessor that keeps relevant nodes that differ from one another."""

from llama_index.postprocessor.divgrpc.diversifier import DivgrpcDiversifier

__all__ = ["DivgrpcDiversifier"]
