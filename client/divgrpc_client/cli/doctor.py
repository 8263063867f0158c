"""The command `doctor`, which needs no server. Its docstring is its help text."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.cli import options, session
from divgrpc_client.formats import json_output

if TYPE_CHECKING:
    from divgrpc.doctor import Finding, Report

# Exit code if anything is wrong with an index.
EXIT_CODE: Final = 5


def add_doctor(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    text = "The data directory of a server, or the folder of one index."
    verb.add_argument("folder", metavar="FOLDER", help=text)
    options.add_flags(
        verb,
        ("--repair", "", "Make the repairs that lose nothing, and check again."),
        (
            "--accept-loss",
            "",
            "With --repair: also make repairs that lose points, writes or default parameters.",
        ),
        ("--json", "", "Print JSON; errors are JSON on standard error."),
    )


def doctor(arguments: argparse.Namespace) -> int:
    """Check every file of a data directory while no server uses it, and repair indexes.

    It reads all files, compares their checksums, and applies the writes that are not merged. Each
    index gets one of these verdicts:

      ok          the index opens, and no file is damaged
      repairable  --repair loses nothing: a crash left unused files, or other files have the data
      damaged     a repair would lose points, writes or default parameters, or there is no repair
      unchecked   another version wrote the index, or this user may not read it

    For each problem, the command says what it means and what --repair would do. Without --repair,
    it changes nothing. It repairs an index only if it can correct every problem of the index. It
    keeps damaged files, under names that end with .damaged.

    The exit code is 0 if all indexes are ok, else 5.

    Examples:
      divgrpc doctor indexes
      divgrpc doctor indexes/shoes --json
      divgrpc doctor indexes --repair
      divgrpc doctor indexes/shoes --repair --accept-loss
    """
    if arguments.accept_loss and not arguments.repair:
        raise InvalidArgumentError("accept_loss", "--accept-loss is for --repair alone")
    with options.with_extra("doctor", "checking files", "server"):
        from divgrpc.doctor import check_folder
    with session.bar(arguments, "MiB") as on_progress:
        reports = check_folder(
            arguments.folder,
            repair=arguments.repair,
            accept_loss=arguments.accept_loss,
            on_progress=on_progress,
        )
    if arguments.json:
        json_output.show({"indexes": [_as_json(report) for report in reports]})
    else:
        sys.stdout.write("".join(map(_as_text, reports)) or "no indexes\n")
    return 0 if all(report.verdict == "ok" for report in reports) else EXIT_CODE


def _as_json(report: "Report") -> dict[str, Any]:
    values = asdict(report) | {"verdict": report.verdict}
    for finding in values["findings"]:
        del finding["step"]
    return values


def _as_text(report: "Report") -> str:
    parts: list[str] = [report.verdict]
    for value, word in (
        (report.generation, "generation {:,}"),
        (report.points, "{:,} points"),
        (report.sequence, "write {:,}"),
    ):
        parts += [] if value is None else [word.format(value)]
    repairs = [f"  repaired: {repair}" for repair in report.repairs]
    findings = [line for finding in report.findings for line in _lines(finding)]
    return "\n".join([f"{report.name}: {', '.join(parts)}", *repairs, *findings, ""])


def _lines(finding: "Finding") -> list[str]:
    lines = [f"  {finding.file}: {finding.problem}", f"    {finding.meaning}"]
    if finding.repair:
        flags = "--repair --accept-loss" if finding.severity == "lossy" else "--repair"
        lines.append(f"    {flags} {finding.repair}.")
    return lines
