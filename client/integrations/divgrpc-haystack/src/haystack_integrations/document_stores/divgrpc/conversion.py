"""Haystack's documents as documents of divgrpc, and summaries of their metadata."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from haystack import Document
from haystack.dataclasses import ByteStream, SparseEmbedding

from divgrpc_client.documents import StoredDocument

_TYPE_NAMES = {bool: "boolean", int: "int", float: "float"}


def stored(document: Document) -> StoredDocument:
    """Return the document to write, without its score."""
    extra = {}
    if document.blob is not None:
        extra["blob"] = document.blob.to_dict()
    if document.sparse_embedding is not None:
        extra["sparse_embedding"] = document.sparse_embedding.to_dict()
    return StoredDocument(document.id, document.content, document.meta, document.embedding, extra)


def restored(document: StoredDocument, score: float | None = None) -> Document:
    """Return a Haystack document; under cosine, its embedding has unit length."""
    extra = document.extra
    sparse, blob = extra.get("sparse_embedding"), extra.get("blob")
    return Document(
        id=document.id,
        content=document.text,
        meta=dict(document.metadata),
        blob=ByteStream.from_dict(blob) if blob else None,
        sparse_embedding=SparseEmbedding.from_dict(sparse) if sparse else None,
        embedding=None if document.vector is None else np.asarray(document.vector).tolist(),
        score=score,
    )


def updated(documents: Iterable[StoredDocument], meta: dict[str, Any]) -> list[StoredDocument]:
    """Return documents with further metadata."""
    return [
        StoredDocument(item.id, item.text, {**item.metadata, **meta}, None, item.extra)
        for item in documents
    ]


def values_of(documents: Iterable[StoredDocument], field: str) -> list[Any]:
    """Return the values that documents have of one name, which may begin with "meta."."""
    key = field.removeprefix("meta.")
    values = (document.metadata.get(key) for document in documents)
    return [value for value in values if value is not None]


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return values without repetition, in the order of their texts; 1, 1.0 and "1" differ."""
    by_key = {(str(value), json.dumps(value, sort_keys=True)): value for value in values}
    return [by_key[key] for key in sorted(by_key)]


def count_distinct(documents: Sequence[StoredDocument], fields: Iterable[str]) -> dict[str, int]:
    """Return the number of distinct values of each field."""
    return {
        field.removeprefix("meta."): len(distinct(values_of(documents, field))) for field in fields
    }


def fields_info(documents: Iterable[StoredDocument]) -> dict[str, dict[str, str]]:
    """Return the type of each name in the metadata, as {"year": {"type": "int"}}."""
    return {
        name: {"type": _TYPE_NAMES.get(type(value), "keyword")}
        for document in documents
        for name, value in document.metadata.items()
        if value is not None
    }


def min_max(values: Sequence[Any]) -> dict[str, Any]:
    """Return the least and the greatest value; None if there is none, or values have no order."""
    try:
        return {"min": min(values), "max": max(values)}
    except (TypeError, ValueError):
        return {"min": None, "max": None}


def page(
    values: Iterable[Any], search_term: str | None, from_: int, size: int
) -> tuple[list[Any], int]:
    """Return a page of the distinct values that contain a term, and the number of all."""
    term = (search_term or "").lower()
    matches = [value for value in distinct(values) if term in str(value).lower()]
    return matches[from_ : from_ + size], len(matches)
