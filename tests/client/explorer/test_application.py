"""Answers over HTTP, without a browser."""

import io
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from werkzeug.test import Client as HttpClient
from werkzeug.test import TestResponse

import divgrpc_client.explorer
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Selector
from divgrpc.types.quotas import Quota
from divgrpc_client import Client
from divgrpc_client.explorer.application import Application, start
from divgrpc_client.explorer.explorer import Explorer
from divgrpc_client.explorer.looks import Looks
from support.data.served_index import Served

STATIC = Path(divgrpc_client.explorer.__file__).parent / "static"


@pytest.fixture(scope="module")
def http(explorer: Explorer) -> HttpClient:
    return HttpClient(Application(explorer))


def _json(response: TestResponse, status: int = 200) -> Any:  # noqa: ANN401  # parsed
    assert (response.status_code, response.content_type) == (status, "application/json")
    return json.loads(response.data)


def _error(response: TestResponse, status: int) -> dict[str, str]:
    error: dict[str, str] = _json(response, status)["error"]
    return error


def test_lists_equal_the_results_of_queries(
    http: HttpClient, client: Client, explored: Served
) -> None:
    answer = _json(http.get("/api/answer?like=s10&k=7&diversity=0.3&selector=mmr"))
    plain = client.query(explored.name, like="s10", k=7, diversity=0)
    options: dict[str, Any] = {"k": 7, "diversity": 0.3, "selector": "mmr"}
    diverse = client.query(explored.name, like="s10", list_collapsed=True, **options)
    ids = {side: [card["id"] for card in answer[side]["results"]] for side in ("plain", "diverse")}
    assert ids == {"plain": plain.ids[0].tolist(), "diverse": diverse.ids[0].tolist()}
    for place, card in enumerate(answer["diverse"]["results"]):
        copies = diverse.collapsed(0, place).tolist()
        assert [copy["id"] for copy in card["copies_shown"]] == copies
        assert card["copies"] == len(copies)
        row = int(card["id"][1:])
        assert card["title"] == f"Story {row // 5}, version {row % 5}"
        assert card["facts"] == [["source", ["Post", "Herald"][row % 2]]]
        assert card["score"] == pytest.approx(float(diverse.scores[0, place]))
    assert max(card["copies"] for card in answer["diverse"]["results"]) == 4
    assert answer["diversity"] == 0.3
    assert answer["query"]["title"] == "Story 2, version 0"
    assert answer["plain"]["figures"]["values"] == {"source": 2}


def test_states_say_which_results_are_in_both_lists(http: HttpClient) -> None:
    answer = _json(http.get("/api/answer?like=s10&diversity=0.3"))
    plain, diverse = (
        {card["id"]: card["state"] for card in answer[side]["results"]}
        for side in ("plain", "diverse")
    )
    assert plain == {point: "both" if point in diverse else "left" for point in plain}
    assert diverse == {point: "both" if point in plain else "new" for point in diverse}
    assert {*plain.values(), *diverse.values()} == {"both", "left", "new"}


@pytest.mark.parametrize("selector", ["greedy", "mmr", "dpp", "max_sum", "rerank"])
def test_reasons_are_those_of_the_explanation(
    http: HttpClient, client: Client, explored: Served, selector: Selector
) -> None:
    url = f"/api/answer?like=s10&diversity=0.6&keep_duplicates=1&selector={selector}"
    answer = _json(http.get(url))
    result = client.query(
        explored.name,
        like="s10",
        diversity=0.6,
        keep_duplicates=True,
        selector=selector,
        explain=True,
    )
    explanation, ids = result.explanations[0], result.ids[0].tolist()
    for place, card in enumerate(answer["diverse"]["results"]):
        relevance, penalty = explanation.relevance_terms[place], explanation.penalties[place]
        terms = f"Relevance {relevance + 0.0:.3g}, penalty {penalty + 0.0:.3g}."
        assert terms in card["reason"]
        if place:
            cause = ids.index(explanation.caused_by[place]) + 1
            assert f"Nearest earlier result: no. {cause} (cosine " in card["reason"]
    displaced = explanation.displaced_ids.tolist()
    left = [card for card in answer["plain"]["results"] if card["state"] == "left"]
    for card in left:
        winner = explanation.displaced_by[displaced.index(card["id"])] + 1
        assert card["reason"].startswith(f"Left out: displaced by no. {winner}; nearest to no. ")
    assert left


def test_qp_relax_has_reasons_by_distance(http: HttpClient) -> None:
    answer = _json(http.get("/api/answer?like=s10&diversity=0.6&selector=qp_relax"))
    reasons = [card["reason"] for card in answer["diverse"]["results"]]
    assert all("Nearest earlier result" in reason for reason in reasons[1:])
    assert "Relevance" not in " ".join(reasons)


def test_a_quota_bounds_the_diverse_list_and_the_curve(
    http: HttpClient, client: Client, explored: Served
) -> None:
    question = "like=s10&k=4&max_each=source%3D2"
    answer = _json(http.get(f"/api/answer?{question}&diversity=0.5"))
    quota = Quota("source", max_each=2)
    result = client.query(explored.name, like="s10", k=4, diversity=0.5, quotas=quota)
    assert [card["id"] for card in answer["diverse"]["results"]] == result.ids[0].tolist()
    assert (answer["quotas"], answer["warnings"]) == ([["source", 2]], [])
    sources = [card["facts"][0] for card in answer["diverse"]["results"]]
    assert sorted(sources) == [["source", "Herald"]] * 2 + [["source", "Post"]] * 2
    assert {card["facts"][0][0] for card in answer["plain"]["results"]} == {"source"}
    plain = _json(http.get("/api/answer?like=s10&k=4"))["plain"]["results"]
    assert [card["id"] for card in answer["plain"]["results"]] == [card["id"] for card in plain]
    point = _json(http.get(f"/api/curve?{question}"))["points"][5]
    for name in ("score", "distance", "least"):
        assert point[name] == pytest.approx(answer["diverse"]["figures"][name])


def test_several_quotas_bound_the_diverse_list(
    http: HttpClient, client: Client, explored: Served
) -> None:
    answer = _json(http.get("/api/answer?like=s10&k=3&max_each=source%3D2,title%3D1"))
    quotas = [Quota("source", max_each=2), Quota("title", max_each=1)]
    result = client.query(explored.name, like="s10", k=3, quotas=quotas)
    assert [card["id"] for card in answer["diverse"]["results"]] == result.ids[0].tolist()
    assert answer["quotas"] == [["source", 2], ["title", 1]]
    for card in answer["diverse"]["results"]:
        assert [name for name, _ in card["facts"]] == ["source", "title"]


def test_a_quota_is_the_reason_why_a_point_is_left_out(http: HttpClient) -> None:
    """Of the four other versions of the story, three have the same source."""
    question = "like=s11&k=4&diversity=0&keep_duplicates=1&max_each=source%3D2"
    answer = _json(http.get(f"/api/answer?{question}"))
    (left,) = [card for card in answer["plain"]["results"] if card["state"] == "left"]
    assert left["reason"].startswith("Left out: source = Post was full when no. ")
    reasons = [card["reason"] for card in answer["diverse"]["results"]]
    assert any(f"Point {left['id']} is better, but source = Post was" in text for text in reasons)


def test_a_quota_that_leaves_too_few_results_gives_those_and_says_so(http: HttpClient) -> None:
    answer = _json(http.get("/api/answer?like=s10&k=6&max_each=source%3D1"))
    assert len(answer["diverse"]["results"]) == 2
    assert answer["warnings"] == ["Only 2 of 6 results are possible within this quota."]
    points = _json(http.get("/api/curve?like=s10&k=6&max_each=source%3D1"))["points"]
    assert all(point["distance"] is not None for point in points)


def test_a_diversity_of_zero_gives_equal_lists(http: HttpClient) -> None:
    answer = _json(http.get("/api/answer?like=s10&diversity=0"))
    lists = [[card["id"] for card in answer[side]["results"]] for side in ("plain", "diverse")]
    assert lists[0] == lists[1]
    assert answer["plain"]["figures"] == answer["diverse"]["figures"]


def test_the_dial_of_a_query_is_shown(http: HttpClient, client: Client, explored: Served) -> None:
    answer = _json(http.get("/api/answer?row=1&diversity=auto"))
    result = client.query(explored.name, explored.queries[1:2], diversity="auto")
    assert answer["diversity"] == result.diversities[0]
    assert answer["query"]["row"] == 1


def test_the_curve_has_the_figures_of_each_dial(http: HttpClient) -> None:
    points = _json(http.get("/api/curve?row=2&k=6"))["points"]
    assert [point["diversity"] for point in points] == [step / 10 for step in range(11)]
    for point in points[::5]:
        url = f"/api/answer?row=2&k=6&diversity={point['diversity']}"
        figures = _json(http.get(url))["diverse"]["figures"]
        for name in ("score", "distance", "least"):
            assert point[name] == pytest.approx(figures[name])
    assert points[10]["distance"] > points[0]["distance"]
    assert points[10]["score"] < points[0]["score"]


def test_random_points_are_points_of_the_index(http: HttpClient, client: Client) -> None:
    ids = {_json(http.get("/api/random"))["id"] for _ in range(8)}
    assert len(ids) > 1
    assert len(client.get("explored", sorted(ids))) == len(ids)


def test_random_points_have_vectors(client: Client) -> None:
    """Ids far from 0, 1, 2 and so on are not guessed."""
    vectors: Any = [[1.0, 0.0], None, [0.0, 1.0]]
    client.build("far-ids", vectors, ids=[10**12, 5, 10**15], vectors_optional=True, replace=True)
    explorer = Explorer(client, "far-ids", Looks())
    ids = {explorer.random_id()["id"] for _ in range(20)}
    assert ids == {str(10**12), str(10**15)}
    client.delete("far-ids", [10**12, 10**15])
    with pytest.raises(InvalidArgumentError, match="no points with a vector"):
        explorer.random_id()


def test_the_index_is_described(http: HttpClient, explored: Served) -> None:
    description = _json(http.get("/api/index"))
    assert description["name"] == explored.name
    assert description["facts"] == "600 points of 16 dimensions, cosine"
    assert (description["rows"], description["has_pictures"]) == (3, True)
    assert description["collapses"]
    assert description["attributes"] == ["title", "source"]
    assert "greedy" in description["selectors"]
    assert "nearest" not in description["selectors"]
    assert (description["selector"], description["diversity"]) == ("greedy", 0.15)


def test_sparse_points_and_large_vectors_are_explored(client: Client) -> None:
    """Vectors of all results do not fit one message."""
    rng = np.random.default_rng(1)
    client.build("wide", rng.standard_normal((40, 40_000), dtype=np.float32), replace=True)
    answer = Explorer(client, "wide", Looks()).answer({"like": "3", "k": "20"})
    assert len(answer["diverse"]["results"]) == 20
    assert answer["diverse"]["figures"]["distance"] > 0


@pytest.mark.parametrize(
    ("url", "status", "field"),
    [
        ("/api/answer", 400, "like"),
        ("/api/answer?like=nobody", 400, "like"),
        ("/api/answer?like=s1&selector=best", 400, "selector"),
        ("/api/answer?like=s1&diversity=2", 400, "diversity"),
        ("/api/answer?row=9", 400, "row"),
        ("/api/answer?like=s1&like=s2", 400, ""),
        ("/api/curve?like=s1&k=0", 400, "k"),
        ("/api/answer?like=s1&max_each=colour%3D1", 400, "quotas"),
        ("/api/answer?like=s1&max_each=source%3D1,source%3D2", 400, "quotas"),
        ("/api/answer?like=s1&max_each=source%3D1&selector=qp_relax", 400, "selector"),
        ("/thumbnail?id=stranger", 404, ""),
        ("/thumbnail?id=../secret", 404, ""),
        ("/thumbnail", 400, "id"),
        ("/static/explorer.js", 404, ""),
        ("/../explorer.py", 404, ""),
        ("/..%2fexplorer.py", 404, ""),
    ],
)
def test_errors_have_a_status_and_a_field(
    http: HttpClient, url: str, status: int, field: str
) -> None:
    error = _error(http.get(url), status)
    assert error["field"] == field
    assert error["message"]


def test_an_index_or_a_server_that_is_gone_is_an_error(client: Client) -> None:
    http = HttpClient(Application(Explorer(client, "never-built", Looks())))
    assert "never-built" in _error(http.get("/api/index"), 404)["message"]
    with socket.socket() as listener, Client("127.0.0.1:1", timeout=0.5, retries=False) as gone:
        listener.bind(("127.0.0.1", 0))
        http = HttpClient(Application(Explorer(gone, "x", Looks())))
        assert "UNAVAILABLE" in _error(http.get("/api/random"), 502)["message"]


def test_a_thumbnail_is_a_small_png(http: HttpClient) -> None:
    response = http.get("/thumbnail?id=s7")
    assert (response.status_code, response.content_type) == (200, "image/png")
    assert Image.open(io.BytesIO(response.data)).size == (24, 16)


def test_points_may_have_no_pictures(client: Client, explored: Served) -> None:
    http = HttpClient(Application(Explorer(client, explored.name, Looks())))
    assert "no picture" in _error(http.get("/thumbnail?id=s7"), 404)["message"]
    assert not _json(http.get("/api/index"))["has_pictures"]


@pytest.mark.parametrize("url", ["/", "/explorer.js", "/api/index", "/nothing", "/thumbnail?id=s7"])
def test_every_answer_keeps_the_page_to_itself(http: HttpClient, url: str) -> None:
    headers = http.get(url).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[kind] for kind in policy if kind.endswith("-src")} == {"'none'", "'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1:9", 200),
        ("example.org", 400),
        ("127.0.0.1.example.org", 400),
        ("localhost.example.org:80", 400),
        ("", 400),
    ],
)
def test_pages_of_other_hosts_are_refused(http: HttpClient, host: str, status: int) -> None:
    """A foreign page could give its own name the address of this machine (DNS rebinding)."""
    for url in ("/", "/api/index", "/thumbnail?id=s7"):
        assert http.get(url, headers={"Host": host}).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_requests_only_read(http: HttpClient, method: str) -> None:
    assert http.open("/api/index", method=method).status_code == 405
    assert http.head("/").data == b""


def test_the_page_names_no_other_site() -> None:
    files = sorted(STATIC.iterdir())
    assert len(files) == 5
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|//\w+\.\w|@import|innerHTML|\beval\b", text) == []
        assert not re.search(r"\son\w+=|style=|<script>|<style", text)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_stand_out_from_their_ground() -> None:
    """WCAG asks for a contrast of 4.5 between texts and what is behind them."""
    schemes = re.findall(r":root \{(.*?)\}", (STATIC / "explorer.css").read_text(), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", scheme))
        pairs = [
            (text, ground)
            for text in ("ink", "soft", "accent", "new", "left", "bad")
            for ground in ("paper", "panel", "mark")
        ]
        for text, ground in [*pairs, ("on-accent", "accent")]:
            light, dark = sorted(map(_luminance, (colours[text], colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port that is in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_refused(explorer: Explorer, port: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{port} cannot be used: Address") as error:
        start(Application(explorer), port)
    assert error.value.field == "port"


def test_the_server_listens_on_the_loopback_interface(explorer: Explorer) -> None:
    server = start(Application(explorer), 0)
    try:
        assert server.socket.getsockname() == ("127.0.0.1", server.port)
        assert server.port > 0
    finally:
        server.server_close()
