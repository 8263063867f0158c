"""Prints results as tables, and shows a progress bar during long commands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from divgrpc.types import (
    Diversification,
    IndexInfo,
    LabelInfo,
    LabelResult,
    Progress,
    QueryDefault,
    QueryResult,
    Search,
    SearchCost,
    WarningInfo,
    WritesInfo,
)
from divgrpc.types.records import Attribute, AttributeValue, Record, Scalar, SparseVector
from divgrpc.types.shards import REPLYING
from divgrpc_client.messages.options import BUILD_DEFAULTS

# Width of the output in a pipe, enough for every table here. Without a terminal, rich would assume
# 80 columns.
_PIPE_WIDTH: Final = 200
# Maximum number of characters of a payload or of a vector in a table.
_CELL_WIDTH: Final = 60
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def console(*, stderr: bool = False) -> Console:
    """Return a rich console, `_PIPE_WIDTH` columns wide if the output is no terminal."""
    terminal = Console(stderr=stderr, highlight=False)
    if terminal.is_terminal:
        return terminal
    return Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table; a heading that begins with ``>`` right-aligns its column."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for column in columns:
        right = column.startswith(">")
        grid.add_column(column.removeprefix(">"), justify="right" if right else "left")
    return grid


@contextmanager
def bar(unit: str = "rows") -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on standard error; yield the function that updates it."""
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}  {task.fields[left]}"),
    )
    with Bar(*columns, console=console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task("waiting", total=None, rows="", left="")

        def step(progress: Progress) -> None:
            seconds, loss = progress.seconds_left, getattr(progress, "loss", None)
            rows = f"{progress.rows_done:,} {unit}"
            progress_bar.update(
                task,
                description=progress.stage,
                completed=progress.rows_done,
                total=progress.rows_total or None,
                rows=rows if loss is None else f"{rows}, loss {loss:,.4g}",
                left="" if seconds is None else f"{seconds:.0f} s left",
            )

        yield step


def built(info: IndexInfo) -> None:
    """Print a summary of an index that was built."""
    out = console()
    out.print(
        f"{info.name}: generation {info.generation}, {info.rows:,} {info.points} rows of "
        f"{info.dims:,} dimensions, {size(_bytes(info))}, serving"
    )
    if info.labels is not None:
        out.print(_labels(info.labels))
    _warn(out, info.warnings)
    out.print(f"divgrpc info {info.name} says what was chosen and why", style="dim")


def extended(info: IndexInfo, names: Sequence[str], rows: int) -> None:
    """Print a summary of attributes that were added with values of `rows` points."""
    out = console()
    new = ", ".join(
        _declared(attribute) for attribute in info.attributes if attribute.name in names
    )
    count = f"{rows:,} of " if rows < info.rows else "all "
    out.print(f"{info.name}: generation {info.generation}, serving; added {new}")
    out.print(f"values of {count}{info.rows:,} points", style="dim")


def result(answer: QueryResult, rows: range, *, shows_copies: bool = False) -> None:
    """Print the results of each row in the order in which the selector picked them.

    If near-copies were listed, a column holds their number for each result. `shows_copies` adds
    their ids. Attributes have a column each, and so have payloads. A group is named with its first
    result.
    """
    columns: list[str] = []
    groups = [_names_of_groups(answer, row) for row in range(len(answer))]
    heads = ["group"] if len(answer.group_counts) else []
    if len(answer.collapsed_offsets) and answer.parameters.duplicate_threshold is not None:
        columns = [">copies", "ids of copies"] if shows_copies else [">copies"]
    further = [*answer.attributes, *(["payload"] if answer.payloads else [])]
    hits = list(answer) if further else []

    def cells(row: int, rank: int) -> Sequence[str]:
        copies = answer.collapsed(row, rank).tolist() if columns else []
        words = [str(len(copies)), " ".join(map(str, copies))][: len(columns)]
        if further:
            hit = hits[row][rank]
            words += [_value(value) for value in (hit.attributes or {}).values()]
            words += [] if hit.payload is None else [_cut(hit.payload.decode(errors="replace"))]
        names = [groups[row].get(rank, "")] if heads else []
        texts = (str(answer.ids[row, rank]), f"{answer.scores[row, rank]:.4f}", *names, *words)
        return tuple(map(escape, texts))

    grid = _ranked((">row", ">id", ">score", *heads, *columns, *further), rows, answer, cells)
    parameters = answer.parameters
    details = (
        f"{parameters.search} search, {parameters.selector} selector, {answer.dial}, "
        f"candidates_limit {parameters.candidates_limit}"
    )
    if answer.sequence:
        details += f", write {answer.sequence}"
    if len(answer.duality_gaps):
        greatest = f"{answer.duality_gaps.max():.1e}"
        details += f"\nduality gap at most {greatest} of the objective's range"
    _show_answer(answer, grid, details)


def diversification(answer: Diversification, keys: Sequence[int | str]) -> None:
    """Print picks in their order; `keys` are the ids or the row numbers of the candidates."""
    shows_copies, starts = len(answer.collapsed_offsets) > 0, answer.group_offsets[:-1].tolist()
    groups = dict(zip(starts, map(_group_name, answer.group_values), strict=True))
    heads = [*(["group"] if groups else []), *([">copies"] if shows_copies else [])]
    grid = table(">rank", ">candidate", ">score", *heads)
    for rank, key in enumerate(answer.take(keys)):
        words = [escape(groups.get(rank, ""))] if groups else []
        words += [str(len(answer.collapsed(rank)))] if shows_copies else []
        grid.add_row(str(rank + 1), escape(str(key)), f"{answer.scores[rank]:.4f}", *words)
    out = console()
    out.print(grid)
    reason = "" if answer.dial_reason is None else f" ({answer.dial_reason})"
    details = f"diversity {answer.diversity:g}{reason}"
    if answer.duplicates:
        details += f", {answer.duplicates} near-copies fill the last places"
    for lack in answer.quota_shortfalls:
        subject = f"{lack.attribute} = {_group_name(lack.value)}" if lack.attribute else "results"
        details += f"\n{escape(subject)}: {lack.count} of at least {lack.required}"
    out.print(details, style="dim")


def next_page(answer: QueryResult) -> None:
    """Print how to get the next page, or that there is none."""
    token = answer.next_page_token
    text = f"next page: --page-token {token}" if token else "this is the last page"
    # A token must stay on one line, so that it can be copied.
    console().print(text, soft_wrap=True)


def _names_of_groups(answer: QueryResult, row: int) -> dict[int, str]:
    """Return the value of each group of a row by the place of its first result."""
    names, place = {}, 0
    for group in answer.groups(row):
        names[place] = _group_name(group.value)
        place += len(group.hits)
    return names


def _group_name(value: Scalar | None) -> str:
    return "(no value)" if value is None else _value(value)


def labels(answer: LabelResult, rows: range) -> None:
    """Print the labels of each document in the order in which the selector picked them."""
    names = answer.names

    def cells(row: int, rank: int) -> Sequence[str]:
        name = [escape(names[row][rank])] if names else []
        return str(answer.labels[row, rank]), *name, f"{answer.scores[row, rank]:.4f}"

    heads = (">document", ">label", *(["name"] if names else []), ">score")
    parameters = answer.parameters
    voters = f" of {parameters.neighbours}, {parameters.vote}" if parameters.neighbours else ""
    details = (
        f"{parameters.mode}{voters}, {parameters.search} search, {parameters.selector} selector, "
        f"diversity {parameters.diversity:g}, candidates_limit {parameters.candidates_limit}"
    )
    _show_answer(answer, _ranked(heads, rows, answer, cells), details)


def _ranked(
    heads: Sequence[str],
    rows: range,
    answer: QueryResult | LabelResult,
    cells: Callable[[int, int], Sequence[str]],
) -> Table:
    """Return a table with a line for each result of each row; the second column is the rank."""
    grid = table(heads[0], ">rank", *heads[1:])
    for position, (row, count) in enumerate(zip(rows, answer.counts.tolist(), strict=True)):
        if count == 0:
            grid.add_row(str(row), "none")
        for rank in range(count):
            number = str(row) if rank == 0 else ""
            grid.add_row(number, str(rank + 1), *cells(position, rank))
    return grid


def _show_answer(answer: QueryResult | LabelResult, grid: Table, details: str) -> None:
    if answer.missing_shards:
        missing = ", ".join(map(str, answer.missing_shards))
        details += f"\n{answer.coverage:.1%} of the points were searched; missing shards: {missing}"
    out = console()
    out.print(grid)
    out.print(f"generation {answer.generation}: {details}", style="dim")
    _warn(out, answer.warnings)


def points(records: Sequence[Record], names: Sequence[str]) -> None:
    """Print stored points, one line each; `names` are the attributes to show."""
    has_payloads = any(record.payload for record in records)
    has_vectors = any(record.vector is not None for record in records)
    labelling = [
        name
        for name in ("labels", "category", "subtopic")
        if any(getattr(record, name) is not None for record in records)
    ]
    heads = ("id", *names, *(["payload"] if has_payloads else []), *labelling)
    grid = table(*heads, *(["vector"] if has_vectors else []))
    for record in records:
        cells = [str(record.id), *(_value(record.attributes[name]) for name in names)]
        if has_payloads:
            cells.append(_cut(record.payload.decode(errors="replace")))
        cells += [_cut(_value(getattr(record, name))) for name in labelling]
        if (vector := record.vector) is not None:
            if isinstance(vector, SparseVector):
                pairs = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
                cells.append(_cut(" ".join(f"{column}:{number:.4g}" for column, number in pairs)))
            else:
                cells.append(_cut(" ".join(f"{number:.4g}" for number in vector)))
        grid.add_row(*map(escape, cells))
    console().print(grid)


def _value(value: AttributeValue) -> str:
    """Return the value of an attribute as text; a missing value is empty."""
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"


def indexes(infos: Sequence[IndexInfo]) -> None:
    """List indexes, one line each."""
    heads = ("name", ">generation", ">rows", ">dims", "points", "metric", "family", "search")
    grid = table(*heads, ">size")
    for info in infos:
        grid.add_row(
            *(info.name, str(info.generation), f"{info.rows:,}", f"{info.dims:,}", info.points),
            *(str(info.parameters.get(name) or "") for name in ("metric", "hash_family")),
            *(info.auto_search, size(_bytes(info))),
        )
    for column in grid.columns:
        # Long names are folded, because a truncated name would be useless.
        column.overflow = "fold"
    out = console()
    out.print(grid if infos else "no indexes yet: divgrpc build NAME FILE makes one")
    for info in infos:
        if info.degraded:
            out.print(f"{info.name} is {_describe_degraded(info)}")
        for warning in info.warnings:
            if not warning.field:  # those about a parameter of the build are for `index`
                out.print(f"{info.name}: {warning.message}", markup=False)


def _describe_degraded(info: IndexInfo) -> str:
    """Return what the shard servers that cannot answer mean for queries."""
    if not info.missing_shards:
        return "[bold]degraded[/]: a shard server cannot answer, and a replica answers for it"
    noun = "shard" if len(info.missing_shards) == 1 else "shards"
    names = ", ".join(map(str, info.missing_shards))
    return (
        f"[bold]unavailable[/]: no server of {noun} {names} can answer, so queries fail unless"
        " they allow partial answers"
    )


def _print_degraded(out: Console, info: IndexInfo) -> None:
    """Print the servers of shards that cannot answer, and why."""
    if not info.degraded:
        return
    out.print(_describe_degraded(info))
    for number, shard in enumerate(info.shards):
        for replica in shard.replicas:
            if replica.state not in REPLYING:
                where = f"shard {number:,} at {replica.address or 'a new server'}"
                out.print(f"  {where}: {replica.state}, {replica.reason}", markup=False)


def index(info: IndexInfo) -> None:
    """Print the full description of an index, with the reason for each chosen parameter."""
    out = console()
    out.print(
        f"[bold]{info.name}[/]  generation {info.generation}, {info.rows:,} rows of {info.dims:,} "
        f"dimensions, codes of {info.code_bits} bits"
    )
    out.print(_points(info))
    if info.shards:
        rows = [shard.rows for shard in info.shards]
        out.print(f"{len(rows):,} shards of {min(rows):,} to {max(rows):,} points")
        _print_degraded(out, info)
    if info.rows_without_vector:
        out.print(f"{info.rows_without_vector:,} points without a vector, which no query finds")
    columns = ["categories"] * info.has_categories + ["sub-topics"] * info.has_subtopics
    out.print(f"{' and '.join(columns) or 'no categories or sub-topics'} kept with the rows")
    out.print(_near_copies(info))
    out.print(_columns(info))
    if info.writes is not None:
        out.print(_writes(info.writes))
    if info.labels is not None:
        out.print(_labels(info.labels))
    out.print()
    out.print(_choices(info), "", _costs(info.search_costs, info.auto_search), "")
    if info.auto_search_dense is not None:
        out.print(_costs(info.search_costs_dense, info.auto_search_dense, "dense queries"), "")
    out.print(_arrays(info))
    if info.query_default is not None:
        out.print(f"\nQuery takes, unless it is told otherwise: {_default(info.query_default)}")
    _warn(out, info.warnings)


def _columns(info: IndexInfo) -> str:
    """Describe the ids, attributes and payloads of the points."""
    names = list(map(_declared, info.attributes))
    payloads = ", with payloads" if info.has_payloads else ""
    kind = "text" if info.id_kind == "string" else "integer"
    return f"{kind} ids{payloads}, {'attributes ' + ', '.join(names) if names else 'no attributes'}"


def _writes(writes: WritesInfo) -> str:
    """Describe the writes to an index."""
    count = f"{writes.sequence:,} write{'' if writes.sequence == 1 else 's'} since the build"
    return (
        f"{count}: {writes.rows_unmerged:,} points not merged, {writes.rows_dead:,} deleted or "
        f"replaced points still stored, {size(writes.log_bytes)} of log"
    )


def _declared(attribute: Attribute) -> str:
    return f"{attribute.name} ({attribute.type}{', multi' if attribute.multi else ''})"


def _near_copies(info: IndexInfo) -> str:
    """Describe the near-copies that a query collapses by default."""
    threshold = info.duplicate_threshold
    if threshold is None:
        return "near-copies are collapsed only where a query names duplicate_threshold"
    unit = "a cosine of at least"
    if info.parameters.get("metric") == "euclidean":
        unit = "a squared distance of at most"
    return f"near-copies have {unit} {threshold:.9g} (the default of duplicate_threshold)"


def _labels(info: LabelInfo) -> str:
    """Describe the labels of an index, its label model and the model's training."""
    columns = ["names"] * info.has_names + ["a hierarchy"] * info.has_hierarchy
    columns += ["those of every row"] * info.has_label_sets
    text = f"{info.label_count:,} labels, {', '.join(columns) or 'nothing'} kept with them"
    for mode, threshold in info.thresholds.items():
        text += f"; {mode} takes a threshold of {threshold:.4g}"
    if not info.rank:
        return f"{text}; no label model: neighbours vote"
    if info.parameters is None:
        text += f"; label factors of rank {info.rank} from elsewhere"
    else:
        text += (
            f"; a label model of rank {info.rank}, regularisation "
            f"{info.parameters['regularisation']:g}, {len(info.losses)} iterations, "
            f"loss {info.losses[0]:,.4g} to {info.losses[-1]:,.4g}"
        )
    costs = {cost.search: cost.microseconds for cost in info.search_costs}
    if (search := info.auto_search or "exact") in costs:
        text += f"; auto search means {search}, {costs[search]:,.0f} µs a document"
    return text


def new_default(default: QueryDefault) -> None:
    """Print the defaults of Query that an evaluation has stored."""
    console().print(f"the default for Query is now {_default(default)}")


def _default(default: QueryDefault) -> str:
    """Describe the stored defaults of Query, without those that are None."""
    pairs = ((field.name, getattr(default, field.name)) for field in fields(default))
    return ", ".join(f"{name} {value}" for name, value in pairs if value is not None)


def _points(info: IndexInfo) -> str:
    if info.points != "sparse":
        return f"{info.points} points"
    per_row = info.nonzeros / max(1, info.rows)
    share = per_row / max(1, info.dims)
    return f"sparse points: {info.nonzeros:,} numbers, {per_row:,.1f} a row, {share:.2%} of all"


def _choices(info: IndexInfo) -> Table:
    """Return a table of the parameters and their sources: the user, Build or the default."""
    grid = table("parameter", "value", "why", title="Parameters")
    reasons = {choice.parameter: choice.reason for choice in info.choices}
    values = {name: info.parameters.get(name) for name in BUILD_DEFAULTS}
    values |= {
        choice.parameter: choice.value for choice in info.choices if choice.parameter not in values
    }
    for name, value in values.items():
        if name in reasons:
            grid.add_row(name, str(value), f"chosen by Build: {reasons[name]}")
        elif value is not None:
            grid.add_row(name, str(value), _source(info, name, BUILD_DEFAULTS[name]))
    if not info.choices:
        grid.add_row("n_probes", str(info.n_probes), "chosen by Build")
    return grid


def _source(info: IndexInfo, name: str, default: object) -> str:
    """Return the source of a parameter that Build did not choose."""
    if name == "n_components" and info.parameters.get("hash_family") == "lsh_div":
        return "not used by lsh_div"
    if info.parameters.get(name) == default:
        return "default"
    # Older releases stored no reasons, so their indexes do not show whether a value was chosen by
    # the user or by Build.
    return "chosen by you" if info.choices or default is not None else ""


def _costs(costs: Sequence[SearchCost], auto: Search, queries: str = "") -> Table:
    """Return a table of the recall and the cost of each search.

    If Build measured recall by number of candidates, each number has a column.
    """
    sizes = [pool.candidates for pool in costs[0].pools] if costs else []
    # An index of an older version has a measured time and the recall of the ten nearest points. It
    # has no recall by number of candidates.
    title = ", ".join(filter(None, ("Measured at Build", queries, "on one thread")))
    price, recall = ">µs a query", ">recall of ten"
    if sizes:
        title = ", ".join(filter(None, ("Recall at Build, by candidates", queries)))
        price, recall = ">µs by work", ">by default"
    grid = table("search", recall, *(f">of {n:,}" for n in sizes), price, "", title=title)
    # On a narrow terminal the remark is folded and the names are not.
    grid.columns[0].no_wrap = True
    for cost in costs:
        remark = "auto means this by default" if cost.search == auto else ""
        recalls = (f"{recall:.3f}" for recall in (cost.recall, *(p.recall for p in cost.pools)))
        grid.add_row(cost.search, *recalls, f"{cost.microseconds:,.0f}", remark)
    return grid


def _arrays(info: IndexInfo) -> Table:
    grid = table("array", "dtype", "shape", ">size", ">share", title="Arrays")
    total = _bytes(info) or 1
    for array in sorted(info.arrays, key=lambda array: -array.bytes):
        shape = " x ".join(f"{n:,}" for n in array.shape)
        grid.add_row(
            array.name, array.dtype, shape, size(array.bytes), f"{array.bytes / total:.1%}"
        )
    grid.add_row("all", "", "", size(_bytes(info)), "")
    return grid


def _warn(out: Console, warnings: Sequence[WarningInfo]) -> None:
    for warning in warnings:
        out.print(f"warning {warning.code}: {warning.message}", style="yellow")


def _bytes(info: IndexInfo) -> int:
    return sum(array.bytes for array in info.arrays)


def size(count: int) -> str:
    """Return a number of bytes in the unit that suits it, such as 4.0 KiB."""
    unit, suffix = filesize.pick_unit_and_suffix(count, list(_UNITS), 1024)
    return f"{count} {suffix}" if unit == 1 else f"{count / unit:.1f} {suffix}"
