"""`divgrpc evaluate --report`: what the command line says of a page, and the page."""

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy.typing as npt

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import EvaluateRow
from divgrpc_client.client import Client
from divgrpc_client.reports import showing
from divgrpc_client.reports.evaluation import write_report
from divgrpc_client.reports.page import ResultLists
from divgrpc_protos.arrays import Matrix

_SHOWN: Final = 4


class EvaluationReport:
    """A page that is going to be written; everything it will need is read at once.

    Raises `InvalidArgumentError` for a file that is not what it should be, and OSError where there
    can be no folder for the page.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._index, self._timeout = arguments.name, arguments.timeout
        self._count = _SHOWN if arguments.show is None else arguments.show
        if self._count < 0:
            raise InvalidArgumentError("show", f"--show must be at least 0, got {self._count}")
        titles, pictures, categories = (
            getattr(arguments, name) and Path(getattr(arguments, name))
            for name in ("titles", "thumbnails", "point_categories")
        )
        self._looks = showing.Looks(
            titles=showing.read_titles(titles) if titles else {},
            thumbnail=showing.read_thumbnails(pictures) if pictures else None,
            categories=showing.read_point_categories(categories) if categories else {},
        )
        # With neither titles nor pictures there is nothing to look at, unless it is asked for.
        if not (titles or pictures) and arguments.show is None:
            self._count = 0
        self._path = Path(arguments.report)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        client: Client,
        rows: Sequence[EvaluateRow],
        queries: Matrix,
        *,
        categories: npt.ArrayLike | None,
        relevant: Sequence[npt.ArrayLike] | None,
    ) -> None:
        """Write the page, after asking for the results that it shows."""
        lists: list[ResultLists] = []
        if self._count:
            lists = showing.side_by_side(
                client,
                self._index,
                queries,
                rows,
                self._looks,
                count=self._count,
                categories=categories,
                relevant=relevant,
                timeout=self._timeout,
            )
        write_report(
            rows, self._path, index=self._index, facts=_facts(client, self._index), lists=lists
        )
        sys.stderr.write(f"report: {self._path}\n")


def _facts(client: Client, name: str) -> list[str]:
    """Say when, with what and of what; the server's machine is not known here."""
    index, server = client.get_index(name), client.server_info()
    parameters = index.parameters
    return [
        dt.datetime.now(tz=dt.UTC).date().isoformat(),
        f"divgrpc {divgrpc.__version__}, server {server.version}, workers: {server.workers}",
        f"{index.rows:,} points of {index.dims:,} dimensions, {parameters['metric']}, "
        f"{parameters['hash_family']}",
    ]
