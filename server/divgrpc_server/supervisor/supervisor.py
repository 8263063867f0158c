"""The supervisor, which starts, connects and replaces all other processes, and ends last.

Theory of operation. The supervisor imports neither grpc nor numba, so it starts quickly, and faults
in them cannot end it. It connects every ready front to every ready worker with a socket. When a
front or worker is replaced, its replacement gets new sockets. The writer, which is connected to the
fronts like a worker, starts at the first write.

The fork server compiles missing kernels and loads all of them. When it is ready, workers are forked
from it, and later also the writer and evaluators. While it is replaced, and if it never becomes
ready, such processes start with exec, which takes two seconds.

A child that dies is replaced immediately. If children of a role repeatedly die soon after their
start, the supervisor pauses before each restart, twice as long each time. It gives up if its
children never become ready. When the supervisor dies, for any reason, all channels close, and so
all children exit.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from divgrpc.errors import DivgrpcError, UnavailableError
from divgrpc.storage.generations import (
    ROOT_LOCK,
    indexes_to_recover,
    indexes_without_pointer,
    list_indexes,
    lock_root,
    sweep,
)
from divgrpc_server.config import EVALUATIONS_MAX, Config
from divgrpc_server.ipc import job_frames, packets
from divgrpc_server.ipc.control import Kind, Message
from divgrpc_server.logging.logs import Logger, log_faults_of
from divgrpc_server.security import cluster
from divgrpc_server.supervisor import retention
from divgrpc_server.supervisor.child import Child, Role, adopt_orphans, reap_orphans
from divgrpc_server.supervisor.index_files import divided_indexes
from divgrpc_server.supervisor.memory_root import memory_root
from divgrpc_server.supervisor.monitor import Monitor, State, metrics_port
from divgrpc_server.supervisor.news import News
from divgrpc_server.supervisor.tally import Tally

# The roles of processes that are forked from the fork server.
_FORKED: Final = ("worker", "writer", "builder", "evaluator")
# The roles of processes for jobs, by the messages that ask for them.
_JOBS: Final[Mapping[str, Role]] = {"build": "builder", "evaluate": "evaluator"}
_YOUNG_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 10.0
_START_FAILURES_MAX: Final = 3
# A child that has not exited this many seconds after the grace period for its calls is killed.
_EXIT_SECONDS: Final = 3.0
# An evaluator exits after it has been idle for this many seconds. It does not exit earlier, because
# it keeps what it has loaded for the next call.
_EVALUATOR_IDLE_SECONDS: Final = 60.0
# If the limit on jobs is reached, a new job waits up to this many seconds for another job to end.
_JOB_WAIT_SECONDS: Final = 0.5


class Supervisor:
    """Runs the processes of one server."""

    def __init__(self, config: Config, root: Path, log: Logger, secret: str = "") -> None:
        """Take the folder of the indexes, and the tokens of the cluster, `secret`."""
        self._config, self._root = config, root
        self._cluster = cluster.ClusterTokens(secret, config)
        self._log = log
        self._serials = itertools.count(1)
        self._children: dict[int, Child] = {}
        # Successive children of each role that ended soon after their start, and those of them
        # that never were ready.
        self._failures: dict[Role, int] = dict.fromkeys(get_args(Role), 0)
        self._failed_starts: dict[Role, int] = dict.fromkeys(get_args(Role), 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        # Whether a caller has ever written to an index.
        self._has_writes = False
        self._news = News()
        self._failed = False
        self._serving = False
        self._stopping = False
        self._tally = Tally()
        self._monitor = Monitor(
            config, root, self._tally, state=self._state, children=self._all, log=log
        )

    async def run(self, metrics: socket.socket | None) -> int:
        """Serve until a stop signal arrives; return the exit code.

        metrics: the socket of `--metrics`, which listens; None for no metrics.
        """
        self._remove_ready_file()
        if metrics is not None:
            await self._monitor.start(metrics)
            self._log.info("serving metrics", address=self._config.metrics)
        self._startup()
        await self._stop.wait()
        await self._shutdown()
        self._monitor.close()
        return 1 if self._failed else 0

    # Starting.

    def _startup(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle_stop)
        # With a fork server, workers follow when it is ready.
        self._fill("forkserver" if adopt_orphans() else "worker")
        self._fill("front")
        if self._config.starts_shard_servers:
            self._fill("engine")
        if self._config.retain or self._config.cluster_token:
            self._spawn(self._look_at_files())

    async def _look_at_files(self) -> None:
        """Remove replaced files when their time is over, and follow tokens, until a stop signal."""
        while not self._stop.is_set():
            self._cluster.refresh()  # for processes that are started later
            try:
                if seconds := self._config.retain:
                    await asyncio.to_thread(retention.remove_retired, self._root, seconds)
            except OSError as error:
                self._log.warning("cannot remove replaced files", reason=str(error))
            await self._pause(retention.LOOK_SECONDS)

    def _fill(self, role: Role) -> None:
        """Start the missing children of a role."""
        try:
            while len(self._of(role)) < self._count(role) and not self._stopping:
                self._start(role)
        except OSError as error:
            self._log.warning("cannot start a child", role=role, reason=str(error))
            self._failures[role] += 1
            self._failed_starts[role] += 1
            self._spawn(self._replace(role))

    def _start(self, role: Role) -> Child:
        child = self._fork(role) if role in _FORKED and self._ready("forkserver") else None
        child = child or Child(
            role, next(self._serials), self._config, self._root, secret=self._cluster.secret
        )
        self._children[child.serial] = child
        self._tally.add_start(role)
        child.watch(self._handle)
        self._spawn(self._outlive(child))
        self._log.debug("started", role=role, child=child.serial, pid=child.pid)
        return child

    def _fork(self, role: Role) -> Child | None:
        """Start a process with the fork server; return None if that fails."""
        fork_server, serial = self._ready("forkserver")[0], next(self._serials)
        try:
            return Child(role, serial, self._config, self._root, fork_server=fork_server)
        except OSError as error:
            self._log.warning("cannot fork a child", role=role, reason=str(error))
            return None

    def _announce(self) -> None:
        """Announce that the server is ready, once all children are ready."""
        roles: tuple[Role, ...] = ("worker", "front")
        roles += ("engine",) if self._config.starts_shard_servers else ()
        if self._serving or any(len(self._ready(role)) < self._count(role) for role in roles):
            return
        self._serving = True
        for front in self._ready("front"):
            front.send(Message("serving"))
        self._log.info("serving", address=self._config.listen, pid=os.getpid())
        if self._config.ready_file:
            _write_whole(Path(self._config.ready_file), f"{self._config.listen}\n")
        sys.stdout.write(f"serving {self._config.listen}\n")
        sys.stdout.flush()

    def _remove_ready_file(self) -> None:
        """Remove the ready file, which a server that was killed may have left."""
        if self._config.ready_file:
            Path(self._config.ready_file).unlink(missing_ok=True)

    # Messages from children.

    def _handle(self, child: Child, message: Message) -> None:
        worker = self._children.get(message.number)
        if message.kind == "ready":
            self._connect_all(child)
        elif message.kind in ("kernels", "topology"):
            self._tell_fronts(message)
        elif message.kind == "promise":
            self._tell_fronts(Message("promise", child.serial, message.text))
        elif message.kind == "hopeless":
            self._give_up(message.text)
        elif message.kind == "lost" and worker is not None:
            worker.kill()
        elif message.kind == "again" and worker is not None:
            self._spawn(self._connect_later(child, worker))
        elif message.kind == "write" and not self._has_writes:
            self._has_writes = True
            self._fill("writer")
        elif message.kind == "renew":
            self._renew(child, message)
        elif message.kind in _JOBS:
            self._spawn(self._start_job(_JOBS[message.kind], child, message))

    def _tell_fronts(self, news: Message) -> None:
        """Send a message to all fronts, and to those that start later, in the same order."""
        self._news.add(news)
        for front in self._ready("front"):
            front.send(news)

    def _give_up(self, reason: str) -> None:
        """Stop, unless clients are served already."""
        if self._serving:
            self._log.warning("the engine cannot start", reason=reason)
            return
        self._log.error("cannot start", reason=reason)
        self._failed = True
        self._stop.set()

    def _connect_all(self, child: Child) -> None:
        child.ready = True
        if child.role == "front":
            for news in self._news.messages:
                child.send(news)
            for worker in (*self._ready("worker"), *self._ready("writer")):
                self._connect(child, worker)
            if self._serving:
                child.send(Message("serving"))
        elif child.role in ("worker", "writer"):
            for front in self._ready("front"):
                self._connect(front, child)
        elif child.role == "forkserver":
            self._fill("worker")
        elif child.role == "engine":
            self._tell_fronts(Message("engine", 1))
        elif child.role == "evaluator":
            loop = asyncio.get_running_loop()
            child.expiry = loop.call_later(_EVALUATOR_IDLE_SECONDS, self._retire, child)
        self._announce()

    def _connect(self, front: Child, worker: Child) -> None:
        """Connect a front with a worker or the writer."""
        try:
            front_end, worker_end = packets.pair()
        except OSError as error:
            self._log.warning("cannot connect a child", child=worker.serial, reason=str(error))
            self._spawn(self._connect_later(front, worker))
            return
        worker.send(Message("front", front.serial), worker_end)
        kind: Kind = "writer" if worker.role == "writer" else "worker"
        front.send(Message(kind, worker.serial), front_end)

    async def _connect_later(self, front: Child, worker: Child) -> None:
        await self._pause(_CONNECT_SECONDS)
        if not (self._stopping or front.exited.done() or worker.exited.done()):
            self._connect(front, worker)

    async def _start_job(self, role: Role, front: Child, request: Message) -> None:
        """Connect a front to a builder or an evaluator, or refuse the job."""
        limit = self._config.max_builds if role == "builder" else EVALUATIONS_MAX
        if len(self._busy(role)) >= limit:
            # A caller may start a new job before the process of its previous job has exited, so
            # wait for an exit.
            exits = [job.exited for job in self._busy(role)]
            await asyncio.wait(
                exits, timeout=_JOB_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        if len(self._busy(role)) >= limit or self._stopping:
            front.send(Message("refused", request.number))
            return

        def choose() -> Child:
            job = next(iter(self._ready(role)), None) or self._start(role)
            job.ready = False
            job.cancel_expiry()
            return job

        self._hand_over(role, front, request, choose)

    def _renew(self, front: Child, request: Message) -> None:
        """Connect a front to the writer for a job, or refuse the job."""
        self._has_writes = True
        self._fill("writer")

        def choose() -> Child:
            for writer in self._of("writer"):
                return writer
            raise OSError("the writer has ended, and starts again later")

        self._hand_over("writer", front, request, choose)

    def _hand_over(
        self, role: Role, front: Child, request: Message, choose: Callable[[], Child]
    ) -> None:
        """Connect a front to the process of its job, or refuse the job.

        choose: returns the process, or raises OSError. It is called once there are sockets, so that
            no process waits for a job that never comes.
        """
        try:
            front_end, job_end = job_frames.pair()
            with contextlib.ExitStack() as undo:
                undo.callback(front_end.close)
                undo.callback(job_end.close)
                job = choose()
                undo.pop_all()
        except OSError as error:
            self._log.warning("cannot start a child", role=role, reason=str(error))
            reason = f"the server cannot start {role} processes just now"
            front.send(Message("refused", request.number, reason))
            return
        job.send(Message("call", 0, request.text), job_end)
        front.send(Message("job", request.number), front_end)

    def _retire(self, evaluator: Child) -> None:
        """End an evaluator after a long idle time."""
        evaluator.ready = False
        evaluator.hang_up()

    def _busy(self, role: Role) -> list[Child]:
        return [child for child in self._of(role) if not child.ready]

    # Exits of children.

    async def _outlive(self, child: Child) -> None:
        """Wait until a child exits, then clean up after it or replace it."""
        code = await child.exited
        del self._children[child.serial]
        reap_orphans([other.pid for other in self._children.values()])
        self._tally.add_end(child, code)
        if child.role in ("builder", "writer") and code != 0:
            await asyncio.to_thread(_sweep, self._root, self._log)
        is_job = child.role in ("builder", "evaluator")
        if not (self._stopping or (is_job and code >= 0)):
            self._log.warning("child ended", role=child.role, child=child.serial, code=code)
        if self._stopping or is_job:
            return
        if child.role == "engine":
            self._tell_fronts(Message("engine", 0))
        elif child.role == "front":
            self._tell_fronts(Message("promise", child.serial, "0"))
            self._news.drop_promise(child.serial)
        age = asyncio.get_running_loop().time() - child.start_time
        is_young = not child.ready or age < _YOUNG_SECONDS
        self._failures[child.role] = self._failures[child.role] + 1 if is_young else 0
        # Once children are ready, callers may end them.
        self._failed_starts[child.role] += 1
        if child.ready:
            self._failed_starts[child.role] = 0
        await self._replace(child.role)

    async def _replace(self, role: Role) -> None:
        failures = self._failures[role]
        starts_max = _START_FAILURES_MAX * self._count(role)
        if not self._serving and self._failed_starts[role] >= starts_max:
            if role == "forkserver":
                self._log.warning(
                    "the fork server does not start; workers start without it",
                    reason="its own lines of the log, or of standard error, say why it ended",
                )
                self._fill("worker")
                return
            self._log.error("children end before they are ready; giving up", role=role)
            self._failed = True
            self._stop.set()
            return
        if failures > 1:
            await self._pause(min(_PAUSE_SECONDS_MAX, 0.1 * 2 ** min(failures, 10)))
        self._fill(role)

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until a stop signal arrives."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # Stopping.

    def _handle_stop(self) -> None:
        if self._stopping:
            self._log.warning("stopping at once")
            for child in self._children.values():
                child.kill()
        self._stop.set()

    async def _shutdown(self) -> None:
        """Drain the fronts, then end all other children."""
        self._stopping = True
        self._remove_ready_file()
        self._log.info("stopping", grace=self._config.grace)
        for front in self._of("front"):
            front.send(Message("drain"))
        await self._wait_for(self._of("front"), self._config.grace + _EXIT_SECONDS)
        living = self._living()
        for child in living:
            child.hang_up()
        await self._wait_for(living, _EXIT_SECONDS)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._log.info("stopped")

    async def _wait_for(self, children: list[Child], seconds: float) -> None:
        """Wait up to `seconds` for children to exit, then kill those that have not."""
        if not children:
            return
        exits = [child.exited for child in children]
        await asyncio.wait(exits, timeout=seconds)
        for child in children:
            child.kill()
        await asyncio.wait(exits)

    def _state(self) -> State:
        return State(
            self._serving,
            self._stopping,
            len(self._ready("front")),
            self._config.fronts,
            len(self._ready("worker")),
            self._config.workers,
            *self._news.kernels,
        )

    def _all(self) -> list[Child]:
        return list(self._children.values())

    def _living(self) -> list[Child]:
        return [child for child in self._children.values() if not child.exited.done()]

    def _count(self, role: Role) -> int:
        """Return how many children of a role the server has."""
        counts = {"front": self._config.fronts, "worker": self._config.workers}
        return counts.get(role, 1)

    def _of(self, role: Role) -> list[Child]:
        children = self._children.values()
        return [child for child in children if child.role == role and not child.exited.done()]

    def _ready(self, role: Role) -> list[Child]:
        return [child for child in self._of(role) if child.ready]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("fault", exc_info=task.exception())


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that readers never see part of it."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


@contextlib.contextmanager
def _storage(config: Config, log: Logger) -> Iterator[Path]:
    """Lock the folder of the indexes and yield it; a read-only server takes no lock."""
    if not config.data_dir:
        with memory_root() as root:
            log.warning("indexes live in memory only and end with the server", folder=str(root))
            yield root
        return
    root = Path(config.data_dir).absolute()
    _check_cache_folder(config)
    if config.read_only:
        _check_data_folder(root)
        yield root
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_root(root))
            retention.begin(root, config.retain)
        except OSError as error:
            raise UnavailableError(f"the data directory cannot be used: {error}") from error
        _sweep(root, log)
        if names := indexes_without_pointer(root):
            log.warning(
                "indexes lack the file CURRENT and are not served; stop the server and run"
                " `divgrpc doctor --repair`, which writes the file again",
                indexes=names,
            )
        _recover(root, log)
        yield root


def _check_data_folder(root: Path) -> None:
    """Raise `UnavailableError` unless a server or a build has used a folder before."""
    try:
        is_used = (root / ROOT_LOCK).exists() or bool(list_indexes(root))
    except OSError as error:
        raise UnavailableError(f"the data directory cannot be read: {error}") from error
    if not is_used:
        raise UnavailableError(
            "the data directory has no indexes, and no server has written to it: start the server"
            " that writes first, or name another folder"
        )


def _check_cache_folder(config: Config) -> None:
    """Raise `UnavailableError` if the folder of the copies cannot be made or written to."""
    if not config.cache_dir:
        return
    try:
        Path(config.cache_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=config.cache_dir):
            pass
    except OSError as error:
        raise UnavailableError(f"the cache directory cannot be used: {error}") from error


def _sweep(root: Path, log: Logger) -> None:
    """Remove the files of unfinished builds; a failure is only logged."""
    try:
        swept = sweep(root)
    except (DivgrpcError, OSError) as error:
        log.warning("cannot remove what unfinished builds left", reason=str(error))
        return
    if swept:
        log.info("removed what unfinished builds left", indexes=swept)


def _recover(root: Path, log: Logger) -> None:
    """After a loss of power, repair the indexes that were written to; a failure is only logged."""
    names = indexes_to_recover(root)
    if not names:
        return
    command = [sys.executable, "-P", "-m", "divgrpc_server.writer.recovery", str(root), *names]
    outcome = subprocess.run(  # noqa: S603  # this interpreter, a module of this package
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if outcome.returncode:
        log.warning("cannot repair indexes that were written to", reason=outcome.stderr.strip())
    else:
        log.info("repaired indexes that were written to", indexes=names)


@contextlib.contextmanager
def _reserved_port(config: Config) -> Iterator[Config]:
    """Reserve the port that all fronts listen on, and yield the configuration with its number.

    If the configured port is 0, the system chooses one. The reserving socket never listens, so it
    receives no connections. Raises `UnavailableError` if the port is in use.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # Bind without SO_REUSEPORT first. Otherwise this server could share the port of
                # another server and receive some of its calls.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                address = probe.getsockname()
            holder = stack.enter_context(socket.socket(family, kind, protocol))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(address)
        except OSError as error:
            raise UnavailableError(f"cannot listen on {config.listen}: {error}") from error
        host = f"[{config.host}]" if ":" in config.host else config.host
        yield replace(config, listen=f"{host}:{address[1]}")


def run(config: Config, log: Logger) -> int:
    """Run a server until it ends, and return its exit code.

    Raises `DivgrpcError` if the server cannot start.
    """
    with (
        metrics_port(config) as (with_metrics, metrics),
        _storage(config, log) as root,
        _reserved_port(with_metrics) as bound,
    ):
        if config.role != "shard" and config.shards == 1 and (names := divided_indexes(root)):
            log.warning(
                "indexes are divided among shards, and queries on them fail: start the server with"
                " --shards",
                indexes=names,
            )
        supervise = _supervise(bound, root, metrics, cluster.secret_of(config), log)
        return asyncio.run(supervise)


async def _supervise(
    config: Config, root: Path, metrics: socket.socket | None, secret: str, log: Logger
) -> int:
    log_faults_of(asyncio.get_running_loop(), log)
    return await Supervisor(config, root, log, secret).run(metrics)
