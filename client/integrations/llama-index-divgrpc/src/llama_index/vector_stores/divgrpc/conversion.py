"""LlamaIndex's nodes as documents of divgrpc."""

import json
from typing import Final

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from divgrpc_client.documents import StoredDocument

# The attribute with the id of the document that a node is a part of.
REF_DOC_ID: Final = "ref_doc_id"


def stored(node: BaseNode) -> StoredDocument:
    """Return the document to write; raises `ValueError` if the node has no embedding.

    The text and the metadata are those of the node. Its other fields are kept beside them.
    """
    fields = node_to_metadata_dict(node, remove_text=True)
    content = json.loads(fields["_node_content"])
    metadata = content.pop("metadata")
    extra = {"node": content, "node_type": fields["_node_type"]}
    if REF_DOC_ID in metadata:
        extra[REF_DOC_ID] = metadata[REF_DOC_ID]
    text = node.get_content(metadata_mode=MetadataMode.NONE) or None
    metadata = {**metadata, REF_DOC_ID: node.ref_doc_id}
    return StoredDocument(node.node_id, text, metadata, node.get_embedding(), extra)


def restored(document: StoredDocument) -> BaseNode:
    """Return the node of a document, also of one that another integration wrote.

    Under cosine, its embedding has unit length.
    """
    extra = document.extra
    metadata = {name: value for name, value in document.metadata.items() if name != REF_DOC_ID}
    if REF_DOC_ID in extra:
        metadata[REF_DOC_ID] = extra[REF_DOC_ID]
    content = {**extra.get("node", {}), "id_": document.id, "metadata": metadata}
    fields = {"_node_content": json.dumps(content), "_node_type": extra.get("node_type")}
    node = metadata_dict_to_node(fields, document.text)
    if document.vector is not None:
        node.embedding = np.asarray(document.vector).tolist()
    return node
