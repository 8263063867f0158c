"""The packages that the client imports, and the types that a type checker sees."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import divgrpc_client
from divgrpc_client import AsyncClient, Client
from divgrpc_client.messages import options

CONSUMER = """
import numpy as np
from divgrpc_client import AsyncClient, Client, QueryResult

def ask(client: Client) -> QueryResult:
    info = client.build("a", np.zeros((2, 2)), n_tables=3, seed=1)
    reveal_type(info.rows)
    for result in client.query_stream("a", [np.zeros(2)], k=3):
        reveal_type(result.generation)
    return client.query("a", [[1.0, 2.0]], k=5, diversity=0.5, search="scan")

async def ask_by_class(client: Client, async_client: AsyncClient) -> None:
    reveal_type(Client.query(client, "a", [1.0]))
    reveal_type(Client.query_stream(client, "a", [[1.0]]))
    reveal_type(await AsyncClient.query(async_client, "a", [1.0]))
    reveal_type(AsyncClient.query_stream(async_client, "a", [[1.0]]))

async def ask_async(client: AsyncClient) -> None:
    reveal_type((await client.query("a", [1.0, 2.0])).ids)
    client.query("a", [1.0], depth=3)
    await client.query("a", [1.0], k="ten")
    await client.query("a", [1.0], selector="best")
"""
EXPECTED = (
    'Revealed type is "int"',
    "signedinteger",
    'Revealed type is "divgrpc.types.QueryResult"',
    'Revealed type is "typing.Iterator[divgrpc.types.QueryResult]"',
    'Revealed type is "typing.AsyncIterator[divgrpc.types.QueryResult]"',
    'Unexpected keyword argument "depth"',
    'Argument "k" has incompatible type "str"',
    'Argument "selector" has incompatible type',
)


def test_type_checkers_know_every_option(tmp_path: Path) -> None:
    consumer = tmp_path / "consumer.py"
    consumer.write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(consumer)]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    for sentence in EXPECTED:
        assert sentence in process.stdout
    assert "Found 4 errors in 1 file" in process.stdout


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("method", ["build", "query", "query_stream", "predict_labels"])
def test_help_explains_every_option(client: type, method: str) -> None:
    signature = inspect.signature(getattr(client, method))
    table, defaults = {
        "build": (options.BuildOptions, options.BUILD_DEFAULTS),
        "predict_labels": (options.PredictOptions, options.PREDICT_DEFAULTS),
    }.get(method, (options.QueryOptions, options.QUERY_DEFAULTS))
    # The docstring wraps lines, so all white space is replaced by single spaces before comparing.
    text = " ".join((inspect.getdoc(getattr(client, method)) or "").split())
    for name, (_, sentence, _) in options.explained(table).items():
        assert signature.parameters[name].default == defaults[name]
        assert signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{name}: {sentence}" in text


def test_the_package_exports_what_it_says() -> None:
    assert all(hasattr(divgrpc_client, name) for name in divgrpc_client.__all__)
