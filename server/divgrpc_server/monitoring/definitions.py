"""All metrics of the server: names, kinds, labels and help texts.

The exposition, the documentation, the dashboard and the alerts are compared with this table.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]

# Upper bounds of the buckets of all histograms, in seconds. A bucket counts the values up to its
# bound, and one more bucket counts the rest.
BUCKET_SECONDS: Final = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A summary has a sum and a count, and no quantiles."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


PLACES_MISSING: Final = "divgrpc_shard_places_missing"
ENGINE_UNREACHABLE: Final = "divgrpc_engine_unreachable"
DAMAGED: Final = "divgrpc_indexes_damaged"

METRICS: Final = (
    # Fronts.
    Metric(
        "divgrpc_calls_total", "counter", "Calls that ended, by status code.", ("method", "code")
    ),
    Metric(
        "divgrpc_call_seconds", "histogram", "Time from a call's start to its end.", ("method",)
    ),
    Metric(
        "divgrpc_calls_in_flight",
        "gauge",
        "Calls that have not ended; open streams, if the method is a stream.",
        ("method",),
    ),
    Metric(
        "divgrpc_refusals_total",
        "counter",
        "Calls that ended with an error, by the reason in its details.",
        ("reason",),
    ),
    Metric(
        "divgrpc_queue_seconds",
        "histogram",
        "Time that requests waited in a front for a worker or for the writer.",
        ("target",),
    ),
    Metric(
        "divgrpc_processing_seconds",
        "histogram",
        "Time from sending a request to a worker or to the writer until the answer came.",
        ("target",),
    ),
    Metric(
        "divgrpc_queued_requests",
        "gauge",
        "Requests that wait in fronts for a worker or for the writer.",
        ("target",),
    ),
    Metric("divgrpc_queued_bytes", "gauge", "Size of the requests that wait.", ("target",)),
    Metric(
        "divgrpc_shard_calls_total",
        "counter",
        "Calls to shard servers that ended: replied, failed, late, unreachable or withdrawn.",
        ("outcome",),
    ),
    Metric(
        "divgrpc_shard_hedges_total",
        "counter",
        "Calls to another replica of a shard because the first one was slow.",
    ),
    Metric(
        "divgrpc_shard_round_seconds",
        "histogram",
        "Time from asking shards for a call until all of them have replied, or it has failed.",
    ),
    Metric(
        "divgrpc_shard_servers",
        "gauge",
        "Shard servers by state; the mean over fronts.",
        ("state",),
    ),
    Metric(
        PLACES_MISSING,
        "gauge",
        "Places of shards at which no server answers calls; the mean over fronts.",
    ),
    Metric(
        ENGINE_UNREACHABLE,
        "gauge",
        "1 while what starts shard servers cannot be reached, so that builds and deletions are"
        " refused; the mean over fronts.",
    ),
    # Workers.
    Metric(
        "divgrpc_queries_total",
        "counter",
        "Query and PredictLabels requests that workers began, those of streams included.",
        ("index",),
    ),
    Metric(
        "divgrpc_query_rows_total", "counter", "Rows of these requests: single queries.", ("index",)
    ),
    Metric(
        "divgrpc_sampled_recall",
        "summary",
        "Share of the true nearest points that the search of sampled queries found.",
        ("index",),
    ),
    # The writer.
    Metric("divgrpc_writes_total", "counter", "Writes that were made.", ("index",)),
    Metric(
        "divgrpc_written_rows_total",
        "counter",
        "Points that these writes wrote or deleted.",
        ("index",),
    ),
    Metric(
        "divgrpc_merges_behind_total",
        "counter",
        "Writes that were refused or put off because merges could not keep up.",
        ("index",),
    ),
    Metric("divgrpc_merges_total", "counter", "Merges of written points.", ("index",)),
    Metric("divgrpc_last_merge_seconds", "gauge", "Duration of the last merge.", ("index",)),
    Metric("divgrpc_vacuums_total", "counter", "Removals of deleted points.", ("index",)),
    Metric("divgrpc_retrains_total", "counter", "Calls of Retrain that built anew.", ("index",)),
    # Builders and the writer.
    Metric(
        "divgrpc_build_stage_seconds",
        "summary",
        "Time that stages of builds, vacuums and retrainings took.",
        ("stage",),
    ),
    Metric(
        "divgrpc_builds_in_stage",
        "gauge",
        "Builds, vacuums and retrainings that are in a stage now.",
        ("stage",),
    ),
    # The supervisor.
    Metric("divgrpc_version_info", "gauge", "Always 1; the labels are versions.", ("version",)),
    Metric("divgrpc_ready", "gauge", "1 if the server is ready for calls, else 0."),
    Metric("divgrpc_workers", "gauge", "Workers that the configuration asks for."),
    Metric("divgrpc_workers_ready", "gauge", "Workers that are ready for queries."),
    Metric("divgrpc_kernels_compiled", "gauge", "Kernels that are compiled."),
    Metric("divgrpc_kernels", "gauge", "All kernels; 0 until a worker has counted them."),
    Metric("divgrpc_processes", "gauge", "Processes that run.", ("role",)),
    Metric("divgrpc_processes_started_total", "counter", "Processes started.", ("role",)),
    Metric(
        "divgrpc_processes_ended_total",
        "counter",
        "Processes that ended: exit is clean, error (an exit code) or signal.",
        ("role", "exit"),
    ),
    Metric(
        "divgrpc_resident_memory_bytes",
        "gauge",
        "Memory: private, or shared, which is files of indexes above all and counts in each"
        " process that maps them. What a process shares with the fork server counts as private in"
        " each.",
        ("role", "kind"),
    ),
    Metric(
        "divgrpc_cpu_seconds_total",
        "counter",
        "Processor time of all processes of a role, ended ones included.",
        ("role",),
    ),
    Metric("divgrpc_open_descriptors", "gauge", "Open file descriptors.", ("role",)),
    Metric("divgrpc_threads", "gauge", "Threads.", ("role",)),
    Metric("divgrpc_data_bytes", "gauge", "Size of all files of indexes."),
    Metric("divgrpc_free_bytes", "gauge", "Free space where indexes are kept."),
    Metric("divgrpc_index_generation", "gauge", "Number of the generation.", ("index",)),
    Metric(
        "divgrpc_index_points",
        "gauge",
        "Points: live, delta (live and not merged) or dead (deleted and still stored).",
        ("index", "state"),
    ),
    Metric(
        "divgrpc_index_sequence", "gauge", "Number of the last write that queries show.", ("index",)
    ),
    Metric("divgrpc_index_log_bytes", "gauge", "Size of the log of writes.", ("index",)),
    Metric(
        DAMAGED,
        "gauge",
        "Indexes with damaged files, as far as this server has read them or its shard servers say.",
    ),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
