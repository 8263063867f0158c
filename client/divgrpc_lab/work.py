"""Runs the jobs of a long measurement, and keeps their results in a folder.

If a run is killed, a run with the same folder measures only the jobs that are missing. Results
pass through JSON, which keeps every digit of a float, so that a result is the same whether it was
kept or just measured.
"""

import gzip
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from divgrpc_client.formats import tables

Job: TypeAlias = Callable[[], Any]


class Work:
    """The results of jobs in `folder`, or in memory only if it is None.

    `facts` describes everything that the results depend on. Results of a run with other facts are
    not used.
    """

    def __init__(self, folder: Path | None, facts: object) -> None:
        self._folder = folder
        self._facts = repr(facts)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def run(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        """Run the jobs that have no kept result, show progress, and return all results by name.

        A result consists of lists, dictionaries and numbers.
        """
        results = {name: self._kept(name) for name in jobs}
        missing = [name for name, result in results.items() if result is None]
        for name in _shown(missing, len(jobs)):
            text = json.dumps(jobs[name](), default=_plain)
            if self._folder is not None:
                self._keep(name, text)
            results[name] = json.loads(text)
        return results

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        key = hashlib.sha256(f"{self._facts}, {name}".encode()).hexdigest()
        return self._folder / f"{key[:24]}.json.gz"

    def _kept(self, name: str) -> Any:  # whatever the job returned
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return json.load(file)

    def _keep(self, name: str, text: str) -> None:
        """Write a result under a temporary name, so that a kill never leaves half a result."""
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(gzip.compress(text.encode()))
        path = self._path(name)
        if path is not None:
            Path(file.name).replace(path)


def _shown(names: list[str], total: int) -> Iterator[str]:
    """Yield the names, and print each with the time that is left on the error output."""
    console = tables.console(stderr=True)
    end = "\r" if sys.stderr.isatty() else "\n"
    begin = time.monotonic()
    for done, name in enumerate(names):
        number = total - len(names) + done + 1
        minutes = (time.monotonic() - begin) / 60
        remaining_text = f", {minutes / done * (len(names) - done):.0f} min left" if done else ""
        text = f"{number} of {total}{remaining_text}: {name}"
        console.print(f"{text:<80}" if end == "\r" else text, end=end, highlight=False)
        yield name


def _plain(value: Any) -> Any:  # arrays and numbers of NumPy
    return value.tolist()
