"""The postprocessor keeps what the call Diversify picks."""

import asyncio

import pytest
from angles import Angles, node
from llama_index.core import QueryBundle, Settings
from llama_index.core.schema import NodeWithScore

from divgrpc_client import Client
from llama_index.postprocessor.divgrpc import DivgrpcDiversifier

ANGLES = [0, 1, 2, 30, 31, 70]
VECTORS = [Angles().get_text_embedding(str(angle)) for angle in ANGLES]


def nodes(*, scores: bool = False, embeddings: bool = False) -> list[NodeWithScore]:
    """Return nodes at growing angles."""
    items = []
    for row, angle in enumerate(ANGLES):
        item = node(angle, str(row))
        item.embedding = item.embedding if embeddings else None
        items.append(NodeWithScore(node=item, score=1 - row / 10 if scores else None))
    return items


def ids(results: list[NodeWithScore]) -> str:
    """Return the ids of nodes as one text."""
    return "".join(item.node_id for item in results)


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("options", [{"diversity": 0}, {"diversity": 0.5}, {"selector": "dpp"}])
def test_nodes_are_those_of_diversify(
    target: str, options: dict[str, object], scores: bool, embeddings: bool
) -> None:
    diversifier = DivgrpcDiversifier(embed_model=Angles(), top_n=3, target=target, options=options)
    items = nodes(scores=scores, embeddings=embeddings)
    relevance = {"scores": [item.score for item in items]} if scores else {"query": VECTORS[0]}
    with Client(target) as client:
        places = client.diversify(VECTORS, k=3, **relevance, **options).places
    expected = "".join(map(str, places))
    assert len(expected) == 3
    picks = diversifier.postprocess_nodes(items, query_str="0")
    assert ids(picks) == expected
    assert picks == [items[place] for place in places]
    assert ids(asyncio.run(diversifier.apostprocess_nodes(items, query_str="0"))) == expected
    if options == {"diversity": 0}:
        assert expected == "012"


def test_scores_need_no_query_and_an_embedded_query_no_model(target: str) -> None:
    diversifier = DivgrpcDiversifier(top_n=2, target=target, options={"diversity": 0})
    assert ids(diversifier.postprocess_nodes(nodes(scores=True, embeddings=True))) == "01"
    query = QueryBundle("", embedding=VECTORS[5])
    assert ids(diversifier.postprocess_nodes(nodes(embeddings=True), query)) == "54"
    for items in (nodes(), [*nodes(scores=True), *nodes()]):
        with pytest.raises(ValueError, match="nodes need scores, or the call a query"):
            diversifier.postprocess_nodes(items)


def test_the_default_model_is_that_of_the_settings(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "_embed_model", Angles())
    diversifier = DivgrpcDiversifier(top_n=2, target=target, options={"diversity": 0})
    assert ids(diversifier.postprocess_nodes(nodes(), query_str="70")) == "54"


def test_fewer_nodes_than_top_n_and_none(target: str) -> None:
    diversifier = DivgrpcDiversifier(embed_model=Angles(), target=target)
    assert ids(diversifier.postprocess_nodes(nodes()[:1], query_str="0")) == "0"
    assert diversifier.postprocess_nodes([], query_str="0") == []
    assert asyncio.run(diversifier.apostprocess_nodes([], query_str="0")) == []


def test_unknown_and_impossible_options_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="diversity"):
        DivgrpcDiversifier(embed_model=Angles(), diversity=0.5)
    with pytest.raises(ValueError, match="top_n"):
        DivgrpcDiversifier(embed_model=Angles(), top_n=0)
    diversifier = DivgrpcDiversifier(
        embed_model=Angles(), target=target, options={"selector": "best"}
    )
    with pytest.raises(ValueError, match="selector"):
        diversifier.postprocess_nodes(nodes(scores=True))


def test_a_postprocessor_is_saved_without_its_model(target: str) -> None:
    diversifier = DivgrpcDiversifier(embed_model=Angles(), top_n=2, target=target)
    again = DivgrpcDiversifier.from_dict(diversifier.to_dict(), embed_model=Angles())
    assert again.to_dict() == diversifier.to_dict()
    assert ids(again.postprocess_nodes(nodes(), query_str="0")) == ids(
        diversifier.postprocess_nodes(nodes(), query_str="0")
    )
