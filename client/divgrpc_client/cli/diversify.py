"""The command that picks from candidates of a file.

The docstring of a command is its help text.
"""

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.types import Diversification
from divgrpc_client.cli import session
from divgrpc_client.cli.options import add_flags, add_options, add_reading, options_in
from divgrpc_client.cli.quotas import add_quotas, names_of, quotas_of
from divgrpc_client.formats import json_output
from divgrpc_client.formats.files import FORMATS, read_lines, read_vectors
from divgrpc_client.formats.record_files import has_records, read_records
from divgrpc_client.messages.options import DiversifyOptions
from divgrpc_protos.arrays import row_count

_SOURCE: Final = (
    "an array of the .npz, an attribute of the points, an .npy file or a text file of one number "
    "per line"
)


def add_diversify(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `diversify`."""
    text = f"A file with the vector of one candidate per row: {FORMATS}."
    verb.add_argument("file", metavar="FILE", help=text)
    add_reading(verb)
    scores = f"Take one score per row, higher is better, from {_SOURCE} (default: all equal)."
    add_flags(verb, ("--scores", "SOURCE", scores))
    add_quotas(verb)
    add_options(verb, DiversifyOptions)


def diversify(arguments: argparse.Namespace) -> None:
    """Pick diverse results from the candidates of FILE, such as those of another search.

    No index is needed. Scores may be on any scale. Rows of FILE are counted from 0. Quotas and
    groups are about the attributes of a .jsonl file.

    Examples:
      divgrpc diversify found.npz --key vectors --scores scores -k 5
      divgrpc diversify found.jsonl --scores relevance     an attribute of each line
      divgrpc diversify found.npy --scores scores.txt --selector mmr --diversity 0.4
      divgrpc diversify found.npy --scores scores.npy --duplicate-threshold 0.95 --json
      divgrpc diversify found.jsonl --scores relevance --max-each brand=2
    """
    path, ids = Path(arguments.file), None
    attributes: dict[str, list[Any]] = {}
    vectors: Any
    if arguments.key is None and has_records(path):
        points = read_records(path)
        vectors, ids, attributes = points.vectors, points.ids, points.attributes
    else:
        base, dims = arguments.index_base, arguments.dims
        vectors = read_vectors(path, arguments.key, base=base, dims=dims)
    scores = None
    if arguments.scores is not None:
        scores = _scores(arguments.scores, path, attributes)
    limits = quotas_of(arguments)
    if limits and attributes:
        limits["attributes"] = {
            name: attributes[name] for name in names_of(limits) if name in attributes
        }
    with session.connect(arguments) as client:
        options: Any = options_in(arguments, DiversifyOptions) | limits
        result = client.diversify(vectors, scores, timeout=arguments.timeout, **options)
    keys = list(range(row_count(vectors))) if ids is None else ids
    if arguments.json:
        json_output.show(_as_object(result, ids))
        return
    from divgrpc_client.formats import tables

    tables.diversification(result, keys)


def _scores(source: str, path: Path, attributes: dict[str, list[Any]]) -> npt.NDArray[Any]:
    """Return the scores that `source` names; raises `InvalidArgumentError` with field scores."""
    file = Path(source)
    try:
        if source in attributes:
            return np.array(attributes[source], np.float64)
        if path.suffix == ".npz" and not file.suffix:
            with np.load(path, allow_pickle=False) as archive:
                if source not in archive:
                    names = ", ".join(archive)
                    raise invalid("scores", f"must be an array of {path}, which has {names}")
                return np.asarray(archive[source])
        if file.suffix == ".npy":
            return np.asarray(np.load(file, allow_pickle=False))
        return np.array(read_lines("scores", file), np.float64)
    except (OSError, KeyError, TypeError, ValueError, EOFError) as error:
        raise invalid("scores", f"cannot be read from {source}: {error}") from None


def _as_object(result: Diversification, ids: list[Any] | None) -> dict[str, Any]:
    """Return a result for JSON; `ids` are those of the candidates, None if they have none."""
    ranks = range(len(result))
    return {
        "places": result.places,
        **({} if ids is None else {"ids": result.take(ids)}),
        "scores": result.scores,
        "selection_scores": result.selection_scores,
        "diversity": result.diversity,
        "dial_reason": result.dial_reason,
        "duplicates": result.duplicates,
        "duality_gap": result.duality_gap,
        "collapsed_places": [result.collapsed(rank) for rank in ranks],
        **_groups_of(result),
    }


def _groups_of(result: Diversification) -> dict[str, Any]:
    """Return the groups and shortfalls of a result for JSON, if it has any."""
    fields: dict[str, Any] = {}
    if result.groups:
        fields["groups"] = [
            {"value": group.value, "size": len(group.places)} for group in result.groups
        ]
    if result.quota_shortfalls:
        fields["quota_shortfalls"] = result.quota_shortfalls
    return fields
