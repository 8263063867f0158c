"""The page in a browser, used as people use it."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

from divgrpc_client import Client
from divgrpc_client.explorer.application import Application, start
from divgrpc_client.explorer.explorer import Explorer
from divgrpc_client.explorer.looks import Looks
from support.data.served_index import Served
from support.processes.browser import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

WIDTHS = (360, 800, 1600)
PAPER = {"light": "rgb(246, 247, 248)", "dark": "rgb(20, 23, 28)"}
# Every element must fit the width of its parent, unless it is hidden from view on purpose.
_OVERFLOWING = """
() => [...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width && !element.closest(".skip") && box.right > innerWidth + 1;
}).map((element) => element.outerHTML.slice(0, 80))
"""
# Names of what the keyboard can reach, and whether a name is empty.
_NAMELESS = """
() => [...document.querySelectorAll("button, input, select, summary, a")]
  .filter((element) => !element.labels?.length && !element.ariaLabel && !element.innerText)
  .map((element) => element.outerHTML)
"""


@pytest.fixture(scope="module")
def running() -> "Iterator[Browser]":
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def address(explorer: Explorer) -> Iterator[str]:
    with _serving(explorer) as address:
        yield address


@contextmanager
def _serving(explorer: Explorer) -> Iterator[str]:
    server = start(Application(explorer), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.shutdown()
        thread.join()


class Visit:
    """A page that was opened, with its errors and the addresses that it fetched."""

    def __init__(self, running: "Browser", address: str) -> None:
        context = running.new_context()
        context.set_default_timeout(20_000)
        self.errors: list[str] = []
        self.addresses: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#curve svg")

    def ids(self, side: str) -> list[str]:
        """Return the ids of the results in a list."""
        cards = self.page.locator(f"#{side} .card").all()
        return [card.get_attribute("data-point") or "" for card in cards]

    def await_text(self, element: str, text: str) -> None:
        """Wait until an element has a text, and no question is under way."""
        self.page.locator(f"#{element}", has_text=text).wait_for()
        self.settle()

    def settle(self) -> None:
        """Wait until no question is under way."""
        self.page.wait_for_function("() => !document.querySelector('.busy')")


@pytest.fixture
def visit(running: "Browser", address: str) -> Iterator[Visit]:
    """Open the page with a query; at the end, nothing may have failed or come from elsewhere."""
    visit = Visit(running, f"{address}#like=s10&diversity=0.3")
    yield visit
    assert visit.errors == []
    assert [url for url in visit.addresses if not url.startswith(address)] == []
    visit.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_fits_the_width(visit: Visit, scheme: Literal["light", "dark"]) -> None:
    page = visit.page
    page.emulate_media(color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(_OVERFLOWING) == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == PAPER[scheme]
        plain, diverse = (page.locator(f"#{side}").bounding_box() for side in ("plain", "diverse"))
        assert plain is not None
        assert diverse is not None
        assert plain["y"] == diverse["y"], "the lists are side by side"
        assert plain["x"] + plain["width"] <= diverse["x"]
    picture = page.locator("#diverse .thumb").first
    assert picture.evaluate("element => [element.naturalWidth, element.naturalHeight]") == [24, 16]


def test_the_keyboard_moves_the_dial(visit: Visit) -> None:
    page, before = visit.page, visit.ids("diverse")
    dial = page.get_by_label("Diversity", exact=True)
    dial.focus()
    page.keyboard.press("End")
    visit.await_text("diverse-note", "1.00")
    assert page.locator("#dial").inner_text() == "1.00"
    assert visit.ids("diverse") != before
    page.keyboard.press("Home")
    visit.await_text("diverse-note", "0.00")
    assert visit.ids("diverse") == visit.ids("plain")
    assert "diversity=0&" in page.url + "&"
    assert page.get_by_role("status").inner_text().startswith("10 diverse results: 0 new, 0 of")


def test_settings_change_the_diverse_list_alone(visit: Visit) -> None:
    page, plain, diverse = visit.page, visit.ids("plain"), visit.ids("diverse")
    page.get_by_label("Collapse near-copies").uncheck()
    page.wait_for_function("() => !document.querySelector('#diverse details')")
    visit.settle()
    assert visit.ids("plain") == plain
    assert visit.ids("diverse") != diverse
    page.get_by_label("Selector").select_option("mmr")
    page.get_by_label("Results", exact=True).fill("4")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('#diverse .card').length === 4")
    visit.settle()
    assert visit.ids("plain") == plain[:4]
    page.get_by_label("Choose the diversity").check()
    page.wait_for_function("() => location.hash.includes('diversity=auto')")
    visit.settle()
    assert re.fullmatch(r"0\.\d\d|1\.00", page.locator("#dial").inner_text())
    assert page.get_by_label("Diversity", exact=True).is_disabled()


def test_a_quota_bounds_the_values_of_an_attribute(visit: Visit) -> None:
    page, plain = visit.page, visit.ids("plain")
    most, attribute = _quota(page, 0)
    assert most.is_disabled()
    assert "max_each" not in page.url
    attribute.select_option("source")
    visit.await_text("diverse-note", "at most 2 of each source")
    assert page.locator("#diverse .card").count() == 4
    assert page.locator("#warnings li").all_inner_texts() == [
        "Only 4 of 10 results are possible within this quota."
    ]
    values = page.locator("#diverse .quota-value").all_inner_texts()
    assert sorted(values) == ["source Herald"] * 2 + ["source Post"] * 2
    assert visit.ids("plain") == plain
    most.fill("5")
    page.keyboard.press("Enter")
    visit.await_text("diverse-note", "at most 5 of each source")
    assert page.locator("#warnings").is_hidden()
    page.reload()
    visit.await_text("diverse-note", "at most 5 of each source")
    assert (most.input_value(), attribute.input_value()) == ("5", "source")
    attribute.select_option("")
    page.wait_for_function("() => !document.querySelector('#diverse .quota-value')")
    visit.settle()
    assert most.is_disabled()
    assert "max_each" not in page.url


def test_several_quotas_bound_the_diverse_list_together(visit: Visit) -> None:
    """The index has two attributes, so there are at most two quotas."""
    page = visit.page
    rows = page.get_by_role("group", name="Quota")
    assert rows.count() == 1
    _quota(page, 0)[1].select_option("source")
    visit.await_text("diverse-note", "at most 2 of each source")
    assert rows.count() == 2
    most, attribute = _quota(page, 1)
    assert attribute.locator("option:disabled").all_inner_texts() == ["source"]
    attribute.select_option("title")
    most.fill("1")
    page.keyboard.press("Enter")
    visit.await_text("diverse-note", "at most 2 of each source and 1 of each title")
    assert rows.count() == 2
    facts = page.locator("#diverse .card").first.locator(".quota-value").all_inner_texts()
    assert [fact.split()[0] for fact in facts] == ["source", "title"]
    assert page.locator("#warnings li").all_inner_texts() == [
        "Only 4 of 10 results are possible within these quotas."
    ]
    page.reload()
    visit.await_text("diverse-note", "at most 2 of each source and 1 of each title")
    first = _quota(page, 0)[1]
    first.focus()
    first.select_option("")
    visit.await_text("diverse-note", "at most 1 of each title")
    assert first.evaluate("element => element === document.activeElement")
    assert rows.count() == 2
    assert "max_each=title" in page.url


def _quota(page: "Page", number: int) -> tuple["Locator", "Locator"]:
    """Return the controls of a quota: its number of results, and its attribute."""
    most, attribute = (
        page.get_by_label(label, exact=True).nth(number) for label in ("At most", "of each")
    )
    return most, attribute


def test_an_index_without_attributes_offers_no_quota(
    running: "Browser", client: Client, explored: Served
) -> None:
    client.build("explored-bare", explored.points, replace=True)
    with _serving(Explorer(client, "explored-bare", Looks())) as address:
        visit = Visit(running, f"{address}#like=3")
        assert visit.page.locator("#quotas").is_hidden()
        assert visit.page.get_by_label("Selector").is_visible()
        assert visit.errors == []
        visit.page.context.close()


def test_near_copies_are_listed(visit: Visit) -> None:
    result = visit.page.locator("#diverse .card", has=visit.page.locator("details")).first
    result.locator("summary").focus()
    visit.page.keyboard.press("Enter")
    copies = result.locator(".copies li")
    copies.first.wait_for()
    assert f"Stands for {copies.count()} near-cop" in result.locator("summary").inner_text()
    assert copies.first.inner_text().startswith("Story")


def test_a_result_becomes_the_query_and_back(visit: Visit) -> None:
    page = visit.page
    second = visit.ids("diverse")[1]
    page.locator("#diverse .card").nth(1).get_by_role("button", name="More like this").click()
    visit.await_text("subject", second)
    assert page.evaluate("document.activeElement.id") == "subject"
    visit.settle()
    assert page.get_by_label("Results like the point").input_value() == second
    page.go_back()
    visit.await_text("subject", "s10")
    visit.settle()


def test_queries_are_rows_points_and_random_points(visit: Visit) -> None:
    page = visit.page
    page.get_by_label(re.compile("Results for a row")).fill("2")
    page.keyboard.press("Enter")
    visit.await_text("subject", "Row 2")
    page.get_by_label("Results like the point").fill("s0")
    page.keyboard.press("Enter")
    visit.await_text("subject", "onerror")
    # The title of this point is HTML, which is shown as text.
    assert page.locator("#subject img").count() == 1
    assert page.title() == "explored - divgrpc explore"
    page.get_by_role("button", name="Random point").click()
    page.wait_for_function("() => !location.hash.includes('like=s0&')")
    visit.settle()


def test_an_error_is_announced_and_goes_away(running: "Browser", address: str) -> None:
    visit = Visit(running, f"{address}#like=s10")
    page, before = visit.page, visit.ids("diverse")
    page.get_by_label("Results like the point").fill("nobody")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "nobody" in alert.inner_text()
    assert visit.ids("diverse") == before
    page.get_by_label("Results like the point").fill("s20")
    page.keyboard.press("Enter")
    alert.wait_for(state="hidden")
    page.context.set_offline(True)
    page.get_by_role("button", name="Random point").click()
    alert.wait_for()
    assert "divgrpc explore" in alert.inner_text()
    page.context.close()


def test_everything_has_a_name_and_can_be_reached(visit: Visit) -> None:
    page = visit.page
    assert page.evaluate(_NAMELESS) == []
    headings = [heading.inner_text() for heading in page.get_by_role("heading").all()]
    assert headings[:4] == ["explored", "Query", "Settings", "What diversity costs here"]
    curve = page.get_by_role("img", name=re.compile("Mean cosine against mean distance"))
    assert curve.count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert (
        page.evaluate("document.activeElement.closest('.card').dataset.point")
        == (visit.ids("plain")[0])
    )
