"""A LlamaIndex node postprocessor that keeps relevant nodes that differ from one another."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from pydantic import ConfigDict, Field

from divgrpc_client import AsyncClient, Client


class DivgrpcDiversifier(BaseNodePostprocessor):
    """Picks `top_n` of the nodes of any retriever, with the call Diversify of a divgrpc server.

        diversifier = DivgrpcDiversifier(embed_model=embed_model, top_n=4)
        index.as_query_engine(similarity_top_k=20, node_postprocessors=[diversifier])

    The nodes need not be in divgrpc. Their embeddings are sent; if a node has none, all texts are
    embedded. Relevance is the score of the nodes, such as that of a reranker, if all have one, else
    the nearness to the query.

    embed_model: the model that turns texts into vectors. Default: that of `Settings`.
    top_n: maximum number of nodes that are kept.
    target: the server's host:port.
    options: options of `Client.diversify`, such as `diversity`, `selector` and
        `duplicate_threshold`.
    client_options: options of `Client` and `AsyncClient`, such as `timeout` and `credentials`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    embed_model: BaseEmbedding | None = Field(default=None, exclude=True)
    top_n: int = Field(default=5, ge=1)
    target: str = "127.0.0.1:50051"
    options: Mapping[str, Any] = Field(default_factory=dict)
    client_options: Mapping[str, Any] = Field(default_factory=dict)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the postprocessor is saved."""
        return "DivgrpcDiversifier"

    @cached_property
    def _client(self) -> Client:
        return Client(self.target, **self.client_options)

    @property
    def _model(self) -> BaseEmbedding:
        return self.embed_model or Settings.embed_model

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """Return the nodes that are kept, in the order of their selection."""
        if not nodes:
            return []
        relevance, vectors = _relevance(nodes, query_bundle), _embeddings(nodes)
        if query_bundle is not None and relevance is None:
            question = self._model.get_agg_embedding_from_queries(query_bundle.embedding_strs)
            relevance = {"query": question}
        if vectors is None:
            vectors = self._model.get_text_embedding_batch(_texts(nodes))
        result = self._client.diversify(vectors, **self._arguments(nodes, relevance))
        return [nodes[place] for place in result.places]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        """Return nodes as `_postprocess_nodes` does."""
        if not nodes:
            return []
        relevance, vectors = _relevance(nodes, query_bundle), _embeddings(nodes)
        if query_bundle is not None and relevance is None:
            words = query_bundle.embedding_strs
            relevance = {"query": await self._model.aget_agg_embedding_from_queries(words)}
        if vectors is None:
            vectors = await self._model.aget_text_embedding_batch(_texts(nodes))
        async with AsyncClient(self.target, **self.client_options) as client:
            result = await client.diversify(vectors, **self._arguments(nodes, relevance))
        return [nodes[place] for place in result.places]

    def _arguments(
        self, nodes: Sequence[NodeWithScore], relevance: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return {"k": min(self.top_n, len(nodes)), **(relevance or {}), **self.options}


def _relevance(
    nodes: Sequence[NodeWithScore], query: QueryBundle | None
) -> Mapping[str, Any] | None:
    """Return the scores, or the vector of the query; None if the query must be embedded."""
    scores = [item.score for item in nodes]
    if None not in scores:
        return {"scores": scores}
    if query is None:
        raise ValueError("nodes need scores, or the call a query")
    return None if query.embedding is None else {"query": query.embedding}


def _embeddings(nodes: Sequence[NodeWithScore]) -> list[list[float]] | None:
    """Return the embeddings of the nodes; None if one has none."""
    embeddings = [item.node.embedding for item in nodes]
    return None if None in embeddings else embeddings


def _texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [item.node.get_content(metadata_mode=MetadataMode.EMBED) for item in nodes]
