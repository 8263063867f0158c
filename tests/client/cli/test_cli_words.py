"""Texts of the command line: help in sentences, and errors that suggest what to do."""

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.types import Choice, IndexInfo, Metric, ReplicaInfo, ShardInfo, WarningInfo
from divgrpc_client import Client
from divgrpc_client.cli import main
from divgrpc_client.cli.options import first_sentence
from divgrpc_client.formats import json_output, tables
from divgrpc_client.load import Settings
from support.processes.command_line import Run, run_script


def verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, verb in action.choices.items():
                yield name, verb, lines[name]
                yield from verbs(verb)


VERBS = list(verbs(main._parser()))


each_verb = pytest.mark.parametrize(
    ("name", "verb", "line"), VERBS, ids=[name for name, _, _ in VERBS]
)


@each_verb
def test_help_reads_as_sentences(name: str, verb: argparse.ArgumentParser, line: str) -> None:
    texts = {name: line}
    for action in verb._actions:
        if action.dest != "help" and not isinstance(action, argparse._SubParsersAction):
            texts[action.dest] = str(action.help)
    wrong = {key: text for key, text in texts.items() if not re.fullmatch(r"[A-Z].*\.", text)}
    assert wrong == {}


def test_a_command_is_described_by_its_whole_first_sentence() -> None:
    assert first_sentence("Do one thing,\nand another. Then stop.\n\nMore.") == (
        "Do one thing, and another."
    )
    assert first_sentence("Show e.g a thing\n\n  an example\n") == "Show e.g a thing."


@each_verb
def test_help_ends_with_examples(name: str, verb: argparse.ArgumentParser, line: str) -> None:
    """Every command has examples after its options, with the same heading and indentation."""
    text = verb.format_help()
    assert verb.prog.endswith(f" {name}")
    assert (verb.description or "").startswith(line.removesuffix("."))
    assert {*re.findall(rf"^( +){re.escape(verb.prog)}\b", text, re.MULTILINE)} == {"  "}
    assert re.match(r"Examples:\n  [A-Z_a-z/= ]*divgrpc ", verb.epilog or "")
    assert text.endswith(f"{verb.epilog}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("evaluate", "Make the best choice the default of this index, until it is built again."),
        ("evaluate", "Number of folds to choose by; 0 makes no choices (default"),
        ("evaluate", "--relevant FILE"),
        ("evaluate-labels", "--split FILE[:COLUMN]"),
        ("build", "--label-names FILE"),
        ("build", "Fail if the whole build takes longer than this (default none)."),
        ("build", "1 to 256; not with cells. Build chooses the default."),
        ("query", "(default 30)."),
        ("query", "Do not collapse near-copies (default no)."),
        ("query", "0 means no limit. Default: max(200, 10 k)"),
        ("query", "--rows START:STOP Send only these rows, counted from 0, without row STOP"),
        ("predict", "The default is 0.3 in the mode neighbour_vote."),
        ("evaluate", "Default: one pair, the defaults of a single call."),
        ("rm", "this cannot be undone"),
        ("add", "Fail if the whole call takes longer than this (default none)."),
        ("load", "starts at --rate (default 100), doubles the rate while the bound holds"),
    ],
)
def test_help_says_what_an_option_does(command: str, words: str) -> None:
    texts = {name: verb.format_help() for name, verb, _ in VERBS}
    assert words in re.sub(r"\s+", " ", texts[command])


def test_options_of_load_name_their_values_and_defaults() -> None:
    """Flags have no negative form, values show a unit, and `Settings` has the same defaults."""
    verb = next(verb for name, verb, _ in VERBS if name == "load")
    usage = " ".join(verb.format_usage().split())
    for option in ("--poisson", "--allow-remote", "--warm-up SECONDS", "--closed N"):
        assert f"[{option}]" in usage
    texts = {action.dest.removeprefix("traffic_"): action.help or "" for action in verb._actions}
    for field in dataclasses.fields(Settings):
        if field.name not in ("quality", "retries") and type(field.default) in (int, float):
            assert f"(default {field.default:g})" in texts[field.name]


@pytest.mark.parametrize(
    ("module", "words", "phrase"),
    [
        ("divgrpc_client.cli.main", ["--help"], "evaluate-labels"),
        ("divgrpc_client.cli.main", ["load", "--help"], "--warm-up SECONDS"),
        ("divgrpc_client.cli.main", ["query", "--help"], "--diversity N|auto"),
        ("divgrpc_lab.__main__", ["--help"], "table1"),
        ("divgrpc_server.__main__", ["--help"], "--workers"),
    ],
)
def test_help_does_without_docstrings(module: str, words: list[str], phrase: str) -> None:
    """`python -OO` keeps no docstrings; commands run all the same."""
    script = f"import sys; from {module} import main; main()"
    out, error = run_script(script, *words, PYTHONOPTIMIZE="2")
    assert phrase in out
    assert error == ""


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["query", "x", "y.npy", "--selector", "MMR"], "did you mean mmr?"),
        (["query", "x", "y.npy", "--search", "brute"], "use exact"),
        (["build", "x", "y.npy", "--metric", "angular"], "use cosine"),
        (["build", "x", "y.npy", "--metirc", "l2"], "--metirc l2: did you mean --metric?"),
        (["query", "x", "y.npy", "--lambda-mult", "0.5"], "use --diversity = 1 - lambda_mult"),
        (["query", "x", "y.npy", "--fetch-k=9"], "use --candidates-limit"),
        (["query", "x", "y.npy", "--diversty", "1"], "did you mean --diversity?"),
        (["query", "x", "y.npy", "--metric", "l2"], "metric is set when an index is built"),
        (
            ["query", "x", "y.npy", "--qqq"],
            "; there are --allow-partial, --already-shown, --candidates-limit, --dims, ",
        ),
        (["evaluate", "x", "y.npy", "--selectors", "greedy", "mrr"], "did you mean mmr?"),
        (["ls", "--frobnicate"], "unrecognized arguments: --frobnicate; there are --insecure, "),
        (["rm", "x", "--yes"], "--yes: leave it out, because commands ask no questions"),
        (["rm", "x", "--jsn"], "did you mean --json?"),
        (["rm", "x", "y"], "unrecognized arguments: y\n"),
        (["rm"], "the following arguments are required: NAME"),
        (["rm", "x", "--timeout", "soon"], "invalid float value: 'soon'"),
        (["attributes", "add", "x", "y.csv", "--type", "--typ"], "expected at least one argument"),
        (["attributes", "add", "x", "y.csv", "--frob"], "unrecognized arguments: --frob; there"),
        (["--json", "rm", "x"], "options come after the command: divgrpc rm --json"),
        (["--target=a:1", "rm", "x"], "options come after the command: divgrpc rm --target=a:1"),
    ],
)
def test_wrong_options_get_a_suggestion(
    capsys: pytest.CaptureFixture[str], arguments: list[str], suggestion: str
) -> None:
    """After the usage of their command, and before how to get its help."""
    text = error_of(arguments, capsys)
    assert suggestion in text
    command = "divgrpc " + next(word for word in arguments if not word.startswith("-"))
    assert text.startswith(f"usage: {command} ")
    assert text.splitlines()[-1].startswith(f"Run {command} ")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["list"], "there is no command 'list': did you mean ls?"),
        (["evaluate-label", "x"], "did you mean evaluate-labels?"),
        (["qqq"], "; there are build, query, "),
        (["--json"], "options come after the command: divgrpc COMMAND --json"),
        ([], "the following arguments are required: COMMAND"),
        ([""], "invalid choice: ''"),
    ],
)
def test_wrong_commands_get_a_suggestion(
    capsys: pytest.CaptureFixture[str], arguments: list[str], suggestion: str
) -> None:
    text = error_of(arguments, capsys)
    assert suggestion in text
    assert text.splitlines()[-1].startswith("Run divgrpc --help ")


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must end with exit code 2; return what it writes."""
    with pytest.raises(SystemExit) as end:
        main.main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "metric"),
    [
        *((metric, metric) for metric in get_args(Metric)),
        ("l2", "euclidean"),
        ("L2", "euclidean"),
        ("IP", "inner_product"),
        ("dot", "inner_product"),
    ],
)
def test_aliases_of_metrics_are_accepted(word: str, metric: str) -> None:
    arguments = main._parser().parse_args(["build", "x", "y.npy", "--metric", word])
    assert arguments.metric == metric


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("http://127.0.0.1:50051", 2, "leave http:// out, write '127.0.0.1:50051'"),
        ("127.0.0.1", 2, "which has no port"),
        ("127.0.0.1:1", 1, "no server listens at 127.0.0.1:1: start one with divgrpc-server"),
    ],
)
def test_addresses_say_what_to_do(
    capsys: pytest.CaptureFixture[str], target: str, code: int, message: str
) -> None:
    assert main.main(["ls", "--target", target]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("hash_limit must be at least 0", "--hash-limit must be at least 0"),
        ('search="exact" or n_probes=2: explain=True', "--search exact or --n-probes 2: --explain"),
        # Other words, names that callers have chosen, and parameters of other commands.
        ("page_token must be text", None),
        ("filter has no attribute hash_limit; the index declares hash_limit", None),
        ("set n_tables=3, or allow_partial=False", None),
    ],
)
def test_messages_name_the_options_of_the_command(message: str, text: str | None) -> None:
    flags = main._parser().verbs["query"].flags
    assert main._in_flags(message, ["hash_limit"], flags) == (text or message)


def test_an_error_of_the_server_names_options(client: Client, run: Run, tmp_path: Path) -> None:
    """As JSON it names fields, which programs know."""
    client.build("optional", np.eye(4), replace=True)
    np.save(tmp_path / "queries.npy", np.eye(4))
    words = ("query", "optional", tmp_path / "queries.npy", "--hash-limit", "-1")
    assert run(*words).err.startswith("divgrpc: --hash-limit must be ")
    assert run(*words, "--json").error["message"].startswith("hash_limit must be ")


def described(choices: tuple[Choice, ...], **parameters: object) -> IndexInfo:
    return IndexInfo(
        name="x",
        generation=1,
        rows=10,
        dims=4,
        parameters={"metric": "cosine", "target_recall": 0.9, **parameters},
        code_bits=256,
        n_probes=3,
        auto_search="scan",
        search_costs=(),
        has_categories=False,
        has_subtopics=False,
        arrays=(),
        choices=choices,
    )


def sources(info: IndexInfo) -> dict[str, str]:
    names, _, why = (
        [str(cell) for cell in column.cells] for column in tables._choices(info).columns
    )
    return dict(zip(names, why, strict=True))


def test_info_tells_which_shard_servers_cannot_answer(capsys: pytest.CaptureFixture[str]) -> None:
    replicas = (
        ReplicaInfo("[::1]:7", "serving"),
        ReplicaInfo("[::1]:8", "avoided", "it was slow"),
        ReplicaInfo("", "starting", "it is new"),
    )
    info = replace(described(()), shards=(ShardInfo(9, 1), ShardInfo(1, 1, replicas)))
    for show in (tables.index, lambda one: tables.indexes([one])):
        show(info)
        assert "degraded" not in capsys.readouterr().out
        show(replace(info, degraded=True))
        text = capsys.readouterr().out
        assert "degraded: a shard server cannot answer, and a replica answers for it" in text
        show(replace(info, degraded=True, missing_shards=(0, 1)))
        text = " ".join(capsys.readouterr().out.split())
        assert "unavailable: no server of shards 0, 1 can answer, so queries fail unless" in text
        assert "degraded" not in text
    tables.index(replace(info, degraded=True))
    text = capsys.readouterr().out
    assert "shard 1 at a new server: starting, it is new" in text
    assert "[::1]" not in text


def test_the_list_of_indexes_says_what_is_wrong_with_an_index(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And leaves out warnings about the parameters of its build."""
    state = WarningInfo("SHARD_FAULTY", "shard 1 is faulty at [::1]:7: its vectors are damaged")
    choice = WarningInfo("ZERO_VECTORS_SKIPPED", "3 zero vectors were skipped", "zero_vectors")
    info = replace(described(()), warnings=(choice, state))
    tables.indexes([info])
    *_, line = capsys.readouterr().out.splitlines()
    assert line == f"{info.name}: shard 1 is faulty at [::1]:7: its vectors are damaged"


def test_a_result_tells_which_shards_were_missing(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Index.build(np.eye(4)).query(np.ones(4), k=2)
    partial = replace(whole, coverage=0.75, missing_shards=(1, 3))
    tables.result(partial, range(1))
    assert "75.0% of the points were searched; missing shards: 1, 3" in capsys.readouterr().out
    json_output.show_result(partial, range(1))
    document = json.loads(capsys.readouterr().out)
    assert (document["coverage"], document["missing_shards"]) == (0.75, [1, 3])
    json_output.show_result(whole, range(1))
    assert "coverage" not in json.loads(capsys.readouterr().out)


def test_info_tells_the_source_of_every_value() -> None:
    choices = (Choice("n_bits", "9", "buckets of two points"),)
    source_by_name = sources(
        described(choices, hash_family="lsh_div", n_bits=9, n_tables=7, n_components=4)
    )
    assert source_by_name == {
        "metric": "default",
        "target_recall": "default",
        "hash_family": "chosen by you",
        "n_bits": "chosen by Build: buckets of two points",
        "n_tables": "chosen by you",
        "n_components": "not used by lsh_div",
    }


def test_info_of_an_index_without_reasons_claims_nothing() -> None:
    source_by_name = sources(described((), hash_family="pca_hash", n_tables=7))
    assert (source_by_name["n_tables"], source_by_name["hash_family"]) == ("", "chosen by you")
    assert source_by_name["n_probes"] == "chosen by Build"
