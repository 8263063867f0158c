"""The command that diagnoses whether a collection crowds. Its docstring is its help text."""

import argparse

from divgrpc.parameters.diagnose import DEFAULT_SAMPLE
from divgrpc_client.cli import session, where
from divgrpc_client.cli.options import add_flags, add_name
from divgrpc_client.formats import json_output


def add_diagnose(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `diagnose`."""
    add_name(verb)
    text = "Also count near-copies by the values of this attribute; may be repeated."
    add_flags(verb, ("--attribute", "NAME", text), action="append", default=[])
    text = f"Number of points to sample, at most 10,000 (default {DEFAULT_SAMPLE:,})."
    add_flags(verb, ("--sample", "N", text), default=DEFAULT_SAMPLE)
    add_flags(verb, ("--seed", "N", "Seed of the sample (default 0)."), default=0)
    where.add_filter(verb)


def diagnose(arguments: argparse.Namespace) -> None:
    """Show whether an index crowds, and what the defaults of queries do about it.

    Near-copies of a sample of points are counted among all points, at several thresholds. Some of
    the sampled points are then used as queries, to measure what each default gains and loses. The
    page ends with figures and begins with advice.

    Examples:
      divgrpc diagnose shoes
      divgrpc diagnose shoes --attribute brand --attribute source
      divgrpc diagnose shoes --where 'price<20' --sample 10000 --seed 1
      divgrpc diagnose shoes --json
    """
    condition = where.filter_of(arguments)
    with session.connect(arguments) as client, session.bar(arguments) as progress:
        diagnosis = client.diagnose(
            arguments.name,
            attributes=arguments.attribute,
            sample=arguments.sample,
            seed=arguments.seed,
            filter=condition,
            progress=progress,
            timeout=arguments.timeout,
        )
    if arguments.json:
        json_output.show(diagnosis)
    else:
        from divgrpc_client.formats import diagnosis_page

        diagnosis_page.show(diagnosis, arguments.name)
