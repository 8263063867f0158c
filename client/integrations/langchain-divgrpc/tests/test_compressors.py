"""The compressor keeps what the call Diversify picks."""

import asyncio

import pytest
from angles import Angles
from langchain_core.documents import Document

from divgrpc_client import Client
from langchain_divgrpc import DivgrpcDiversifier

TEXTS = ["0", "1", "2", "30", "31", "70"]


def documents() -> list[Document]:
    """Return documents whose metadata have scores."""
    return [Document(text, metadata={"score": len(TEXTS) - row}) for row, text in enumerate(TEXTS)]


def texts(results: object) -> list[str]:
    """Return the texts of documents."""
    return [document.page_content for document in results]


@pytest.mark.parametrize("score_key", [None, "score"])
@pytest.mark.parametrize("options", [{"diversity": 0}, {"diversity": 0.5}, {"selector": "dpp"}])
def test_documents_are_those_of_diversify(
    target: str, score_key: str | None, options: dict[str, object]
) -> None:
    diversifier = DivgrpcDiversifier(
        embeddings=Angles(), k=3, target=target, score_key=score_key, options=options
    )
    arguments = {"scores": range(6, 0, -1)} if score_key else {"query": Angles().embed_query("0")}
    with Client(target) as client:
        expected = client.diversify(Angles().embed_documents(TEXTS), k=3, **arguments, **options)
    picks = [TEXTS[place] for place in expected.places]
    assert len(picks) == 3
    assert texts(diversifier.compress_documents(documents(), "0")) == picks
    assert texts(asyncio.run(diversifier.acompress_documents(documents(), "0"))) == picks
    if options == {"diversity": 0}:
        assert picks == TEXTS[:3]


def test_fewer_documents_than_k_and_none(target: str) -> None:
    diversifier = DivgrpcDiversifier(embeddings=Angles(), target=target)
    assert texts(diversifier.compress_documents(documents()[:1], "0")) == ["0"]
    assert diversifier.compress_documents([], "0") == []
    assert asyncio.run(diversifier.acompress_documents([], "0")) == []


def test_missing_scores_and_unknown_options_are_refused(target: str) -> None:
    diversifier = DivgrpcDiversifier(embeddings=Angles(), target=target, score_key="rank")
    with pytest.raises(ValueError, match="'rank' is not in the metadata"):
        diversifier.compress_documents(documents(), "0")
    with pytest.raises(ValueError, match="diversity"):
        DivgrpcDiversifier(embeddings=Angles(), diversity=0.5)
