"""How a query continues what was shown before."""

from typing import Any, NamedTuple

from divgrpc.errors import invalid
from divgrpc.types.filters import Filter
from divgrpc.types.quotas import Quotas


class Continuation(NamedTuple):
    """How a query continues, and what identifies its request besides `QueryParameters`.

    paged: whether the result is to have a token for the next page.
    page_token: the token of the page before, or None.
    already_shown: ids or vectors of points that were shown before, or None.
    filter, exclude_ids, like: as in `Index.query`.
    """

    paged: bool = False
    page_token: str | None = None
    already_shown: Any = None
    filter: Filter | None = None
    exclude_ids: Any = ()
    like: Any = ()

    def check_rows(self, field: str, rows: int) -> None:
        """Raise `InvalidArgumentError` if there are pages and not just one query row."""
        if rows != 1 and (self.paged or self.page_token is not None):
            raise invalid(field, f"must be one row, because pages are about one, got {rows}")

    def check_quotas(self, quotas: Quotas | None) -> None:
        """Raise `InvalidArgumentError` if the query also has quotas or groups."""
        if quotas is None:
            return
        name = "already_shown"
        if self.paged or self.page_token is not None:
            name = "paged" if self.page_token is None else "page_token"
        field = "quotas" if quotas.quotas else "group_by"
        raise invalid(field, f"cannot be combined with {name}: set one of the two")
