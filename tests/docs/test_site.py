"""The site is complete: every page is in the navigation, links work, and README.md is short."""

import importlib
import re
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import yaml

from divgrpc.storage.manifest import FORMAT_VERSION
from divgrpc_protos.v1 import diverse_index_pb2, query_pb2
from support.checks.documentation import PAGES, ROOT

README_LINES_MAX = 250
README_BYTES_MAX = 15_000
GENERATED_PAGES = {"reference/grpc.md", "reference/changelog.md"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports a script from docs/, which is not a package."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module


def _configuration() -> dict[str, object]:
    text = (ROOT / "docs" / "mkdocs.yml").read_text()
    configuration: dict[str, object] = yaml.safe_load(text)
    return configuration


def _entries(navigation: object) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for below in navigation.values():
            yield from _entries(below)
    elif isinstance(navigation, list):
        for entry in navigation:
            yield from _entries(entry)


def test_every_page_is_in_the_navigation() -> None:
    entries = list(_entries(_configuration()["nav"]))
    files = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    assert len(entries) == len(set(entries))
    assert set(entries) == files | GENERATED_PAGES


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_bytes()
    assert len(text.splitlines()) <= README_LINES_MAX
    assert len(text) <= README_BYTES_MAX


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/examples/README.md"])
def test_relative_links_outside_the_site_exist(name: str) -> None:
    """MkDocs does not check the links of files that are not pages."""
    path = ROOT / name
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_files_that_pages_name_exist() -> None:
    pattern = r"`((?:divgrpc|server|client|protos|tests|docs)/[\w./-]+\.\w+)`"
    paths = {
        (page.name, path)
        for page in PAGES.rglob("*.md")
        for path in re.findall(pattern, page.read_text())
    }
    assert paths
    assert [pair for pair in sorted(paths) if not (ROOT / pair[1]).exists()] == []


def test_contributing_explains_every_make_target() -> None:
    targets = re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    page = (PAGES / "contributing.md").read_text()
    assert [target for target in targets if f"`make {target}`" not in page] == []


def test_versions_names_the_format_of_indexes() -> None:
    text = (PAGES / "reference/versions.md").read_text()
    assert f"this release writes {FORMAT_VERSION}." in text


def test_pages_load_nothing_from_other_sites() -> None:
    """Fonts, images, styles and scripts must come with the site."""
    theme = _configuration()["theme"]
    assert isinstance(theme, dict)
    assert theme["font"] is False
    remote = re.compile(r"""(!\[[^]]*\]\(|src=["']|url\(["']?|@import\s+["'])(https?:)?//""")
    sources = [path for path in PAGES.rglob("*") if path.suffix in {".md", ".css", ".svg"}]
    assert sources
    assert [path.name for path in sources if remote.search(path.read_text())] == []


def test_the_grpc_page_has_every_method_message_and_comment(
    script: Callable[[str], ModuleType],
) -> None:
    """The page is generated from the .proto files, so it has all that they declare."""
    text = script("grpc_reference").page()
    for name, method in diverse_index_pb2.DESCRIPTOR.services_by_name[
        "DiverseIndex"
    ].methods_by_name.items():
        assert f"#### {name}\n" in text
        assert f"### {method.input_type.name} {{" in text
        assert f"### {method.output_type.name} {{" in text
    for field in query_pb2.QueryRequest.DESCRIPTOR.fields:
        assert re.search(rf"^\| `{field.name}` \| {field.number} \| .+ \| \S.* \|$", text, re.M)


def test_docstrings_become_lists(script: Callable[[str], ModuleType]) -> None:
    """Lines of a docstring that explain parameters become list items, with continuation lines."""
    text = "Do it.\n\na, b: the first\n    and more.\n*args: others.\n\nRaises `E`: never."
    assert script("comments").from_docstring(text) == (
        "Do it.\n\n- `a`, `b`: the first and more.\n- `*args`: others.\n\nRaises `E`: never."
    )
    rest, meanings = script("comments").split_docstring(text)
    assert rest == "Do it.\n\nRaises `E`: never."
    assert meanings == {"a": "the first and more.", "b": "the first and more.", "*args": "others."}


def test_proto_comments_become_markdown(script: Callable[[str], ModuleType]) -> None:
    """Lines of a paragraph are joined, names become a table, and special characters are escaped."""
    text = " One_two <a>\n of `x_y`.\n\n   A_B  1\n   CD   2 | 3\n\n    x = 1\n"
    assert script("comments").from_comment(text) == (
        "One\\_two \\<a\\> of `x_y`.\n\n"
        "| name | meaning |\n| --- | --- |\n| `A_B` | 1 |\n| `CD` | 2 \\| 3 |\n\n"
        "    x = 1"
    )
