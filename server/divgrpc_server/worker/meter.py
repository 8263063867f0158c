"""What a worker counts: its queries, by index."""

from divgrpc_server.monitoring.page import Page


class QueryMeter:
    """Counts requests for queries and predictions, and their rows."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def add(self, index: str, rows: int) -> None:
        """Count a request to an index that exists."""
        page, label = self._page, self._page.index_label(index)
        page.add(page.cell("divgrpc_queries_total", label))
        page.add(page.cell("divgrpc_query_rows_total", label), rows)
