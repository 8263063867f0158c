"""An embedding model for tests, and nodes with its embeddings."""

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode


class Angles(BaseEmbedding):
    """The vector of the text "40 anything" has an angle of 40 degrees."""

    def _get_text_embedding(self, text: str) -> list[float]:
        angle = np.deg2rad(float(text.split(maxsplit=1)[0]))
        return [float(np.cos(angle)), float(np.sin(angle))]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def node(angle: float, node_id: str, document: str | None = None, **metadata: object) -> TextNode:
    """Return a node with an embedding, which may be a part of a document."""
    text = f"{angle} degrees"
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)} if document else {}
    return TextNode(
        id_=node_id,
        text=text,
        metadata=metadata,
        relationships=source,
        embedding=Angles().get_text_embedding(text),
    )
