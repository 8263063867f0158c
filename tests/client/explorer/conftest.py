"""An index of near-copies with titles and pictures, and the explorer of it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc_client import Client
from divgrpc_client.explorer.explorer import Explorer
from divgrpc_client.explorer.looks import Looks
from divgrpc_client.formats.pictures import read_pictures
from support.data.served_index import Served

STORIES, VERSIONS = 120, 5
# A title that would run a script if it were put into a page as HTML.
SCRIPT = "<img src=x onerror=\"document.title='run'\"> & 'quotes'"


@pytest.fixture(scope="session")
def explored(client: Client) -> Served:
    """Build an index with text ids of stories that have five versions."""
    rng = np.random.default_rng(5)
    stories = rng.standard_normal((STORIES, 16))
    points = np.repeat(stories, VERSIONS, axis=0)
    points += 0.02 * rng.standard_normal(points.shape)
    rows = range(len(points))
    titles = [f"Story {row // VERSIONS}, version {row % VERSIONS}" for row in rows]
    titles[0] = SCRIPT
    client.build(
        "explored",
        points,
        replace=True,
        ids=[f"s{row}" for row in rows],
        attributes={"title": titles, "source": [["Post", "Herald"][row % 2] for row in rows]},
        payloads=[f"payload {row}" for row in rows],
    )
    queries = rng.standard_normal((3, 16)).astype(np.float32)
    return Served("explored", points.astype(np.float32), queries)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, explored: Served) -> Path:
    """Draw a picture of each point, one of no point, and one beside the folder."""
    folder = tmp_path_factory.mktemp("explored") / "pictures"
    folder.mkdir()
    for row in range(len(explored.points)):
        Image.new("RGB", (24, 16), (row % 256, 90, 160)).save(folder / f"s{row}.png")
    Image.new("RGB", (24, 16)).save(folder.parent / "secret.png")
    Image.new("RGB", (24, 16)).save(folder / "stranger.png")
    return folder


@pytest.fixture(scope="session")
def explorer(client: Client, explored: Served, folder: Path) -> Explorer:
    looks = Looks(attribute="title", pictures=read_pictures(folder))
    return Explorer(client, explored.name, looks, explored.queries)
