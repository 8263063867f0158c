"""Tasks that take turns as a seed says, and a clock that moves only when all of them wait.

Each task is a thread, but only the one that has the baton runs. The baton changes hands in `pause`,
`sleep` and `wait_until`, which everything else is made of: the locks and threads of `Threads`, and
the calls of the system (`simulation.system`). So a run depends on the seed alone.

A task belongs to a process. When a process is killed, each of its tasks raises `Ended` where it
waits, and from then on in each of these functions. An event loop is a task as well: it calls
`wait_until` where it would wait for a descriptor, and `now` is its clock.
"""

import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NoReturn

# Seconds that each pause takes.
_TICK_SECONDS: Final = 1e-6
_PAUSES_MAX: Final = 2_000_000


def _closed_gate() -> threading.Lock:
    """Return a lock that is held: `acquire` waits until another thread calls `release`."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Ended(BaseException):
    """The process of a task was killed."""


class DeadlockError(BaseException):
    """All tasks wait for one another, or do not end; no code under test catches it."""


class Process:
    """A process: its tasks share its fate."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.tasks: list[Task] = []

    @property
    def is_over(self) -> bool:
        """Whether no task runs any more."""
        return all(task.is_over for task in self.tasks)


class Task:
    """A thread that runs when it has the baton."""

    def __init__(self, process: Process, name: str, function: Callable[[], object]) -> None:
        self.process, self.name, self.function = process, name, function
        self.is_over = False
        self.wake_time = 0.0
        self.condition: Callable[[], bool] | None = None
        # When the task runs even if its condition does not hold.
        self.end_time = math.inf
        # The task that kills this one, and waits for its end.
        self.killer: Task | None = None
        self.gate = _closed_gate()


class Scheduler:
    """Gives the baton to tasks.

    now: seconds since the start of the run.
    pauses: how many there were.
    share: with this probability, a pause hands the baton over.
    stall_share, stall_seconds: with this probability, it does so for this time, on average, as a
        system does that has no processor for a thread.
    """

    def __init__(
        self, seed: int, share: float = 0.1, stall_share: float = 0, stall_seconds: float = 0
    ) -> None:
        self.now, self.share = 0.0, share
        self._stall_share, self._stall_seconds = stall_share, stall_seconds
        self._random = random.Random(seed)
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._main = _closed_gate()
        self._local = threading.local()
        self.pauses = 0
        self.failure: BaseException | None = None
        self.on_kill: Callable[[Process], None] = lambda _: None

    @property
    def task(self) -> Task | None:
        """The task of this thread; None in a thread that is none."""
        return getattr(self._local, "task", None)

    def spawn(self, process: Process, name: str, function: Callable[[], object]) -> Task:
        """Add a task to a process."""
        task = Task(process, name, function)
        process.tasks.append(task)
        self._tasks.append(task)
        threading.Thread(target=self._run_task, args=(task,), daemon=True).start()
        return task

    def run(self) -> None:
        """Run until all tasks have ended; raise the first error of a task."""
        if self._tasks:
            self._give_baton()
            self._main.acquire()
        self._current = None
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> NoReturn:
        """Raise an error, and let `run` raise it whoever catches it."""
        self.failure = self.failure or error
        raise error

    def pause(self, share: float | None = None) -> None:
        """Let other tasks run, perhaps."""
        task = self._alive()
        self.pauses += 1
        if self.pauses > _PAUSES_MAX:
            self.fail(DeadlockError("the tasks do not end"))
        self.now += _TICK_SECONDS
        if self._stall_share and self._random.random() < self._stall_share:
            self.sleep(self._random.expovariate(1 / self._stall_seconds))
        elif self._random.random() < (self.share if share is None else share):
            self._hand_over(task)

    def stall(self, share: float, mean_seconds: float) -> None:
        """Sleep for a random time, with a probability."""
        if share and self._random.random() < share:
            self.sleep(self._random.expovariate(1 / mean_seconds))

    def sleep(self, seconds: float) -> None:
        """Let other tasks run until the clock shows a later time."""
        task = self._alive()
        task.wake_time = self.now + seconds
        self._hand_over(task)

    def wait_until(self, condition: Callable[[], bool], seconds: float = math.inf) -> None:
        """Let other tasks run until a condition holds, which they change, or the time is over."""
        task = self._alive()
        if not condition() and seconds > 0:
            task.condition, task.end_time = condition, self.now + seconds
            self._hand_over(task)
            task.condition, task.end_time = None, math.inf

    def kill(self, process: Process) -> None:
        """End a process: its tasks raise `Ended`, this one last if it belongs to the process."""
        task = self._current
        assert task is not None
        if process.is_alive:
            process.is_alive = False
            self.on_kill(process)
        for other in list(process.tasks):
            if other is not task and not other.is_over:
                other.killer, self._current = task, other
                other.gate.release()
                task.gate.acquire()
                self._current = task
        if task.process is process:
            raise Ended

    def _alive(self) -> Task:
        task = self._local.task
        assert isinstance(task, Task)
        if not task.process.is_alive:
            raise Ended
        return task

    def _hand_over(self, task: Task) -> None:
        following = self._next_task()
        if following is not task:
            self._current = following
            following.gate.release()
            task.gate.acquire()
        if not task.process.is_alive:
            raise Ended

    def _next_task(self) -> Task:
        while True:
            ready = [t for t in self._tasks if t.wake_time <= self.now and self._may_run(t)]
            if ready:
                return ready[self._random.randrange(len(ready))] if len(ready) > 1 else ready[0]
            times = [time for task in self._tasks for time in (task.wake_time, task.end_time)]
            times = [time for time in times if self.now < time < math.inf]
            if not times:
                waiting = ", ".join(f"{task.process.name}: {task.name}" for task in self._tasks)
                self.fail(DeadlockError(f"all tasks wait: {waiting}"))
            self.now = min(times)

    def _may_run(self, task: Task) -> bool:
        return task.condition is None or task.end_time <= self.now or task.condition()

    def _give_baton(self) -> None:
        """Give the baton to a task, or to the main thread after the last one and after an error."""
        if self._tasks and self.failure is None:
            try:
                self._current = self._next_task()
            except DeadlockError:
                pass
            else:
                self._current.gate.release()
                return
        self._main.release()

    def _run_task(self, task: Task) -> None:
        self._local.task = task
        task.gate.acquire()
        try:
            if task.process.is_alive:
                task.function()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self.failure = self.failure or error
        task.is_over = True
        with suppress(ValueError):
            self._tasks.remove(task)
        if task.killer is not None:
            task.killer.gate.release()
        else:
            self._give_baton()


class Lock:
    """Stands for `threading.Lock` and, with `is_reentrant`, for `threading.RLock`."""

    def __init__(self, scheduler: Scheduler, *, is_reentrant: bool = False) -> None:
        self._scheduler, self._is_reentrant = scheduler, is_reentrant
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self) -> bool:
        """Wait until the lock is free, and take it."""
        task = self._scheduler.task
        if not (self._is_reentrant and self._owner is task):
            self._scheduler.pause()
            self._scheduler.wait_until(lambda: self._owner is None)
        self._owner = task
        self._depth += 1
        return True

    def release(self) -> None:
        """Free the lock."""
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        *,
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> None:
        self._scheduler, self.daemon = scheduler, daemon
        self._target = partial(target, *args) if args else target
        self._task: Task | None = None

    def start(self) -> None:
        """Add a task to the process of this one."""
        task = self._scheduler.task
        assert task is not None
        name = getattr(self._target, "__name__", "thread")
        self._task = self._scheduler.spawn(task.process, name, self._target)
        self._scheduler.pause()

    def join(self) -> None:
        """Wait until the task has ended."""
        task = self._task
        assert task is not None
        self._scheduler.wait_until(lambda: task.is_over)

    def is_alive(self) -> bool:
        """Whether the task has not ended."""
        return self._task is not None and not self._task.is_over


class Semaphore:
    """Stands for `threading.Semaphore`."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self._scheduler, self._count, self._count_max = scheduler, count, count

    @property
    def is_free(self) -> bool:
        """Whether nobody has a place."""
        return self._count == self._count_max

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take one of the places, if there is one."""
        self._scheduler.pause()
        if blocking:
            self._scheduler.wait_until(lambda: self._count > 0)
        has_place = self._count > 0
        self._count -= has_place
        return has_place

    def release(self) -> None:
        """Free a place."""
        self._count += 1


class Call:
    """Stands for `concurrent.futures.Future`."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None

    def result(self) -> Any:  # noqa: ANN401  # of any function
        """Return what the function has returned, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.value


class Executor:
    """Stands for `concurrent.futures.ThreadPoolExecutor` with one thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._last = Call()
        self._last.is_done = True

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:  # noqa: ANN401  # of any function
        """Call a function in the thread, after all earlier ones."""
        before, call = self._last, Call()
        self._last = call

        def run() -> None:
            self._scheduler.wait_until(lambda: before.is_done)
            try:
                call.value = function(*arguments)
            except Exception as error:  # noqa: BLE001  # `result` raises it
                call.error = error
            call.is_done = True

        Thread(self._scheduler, run).start()
        return call


def wait(scheduler: Scheduler, calls: list[Call], seconds: float) -> Any:  # noqa: ANN401  # stands for a tuple
    """Stand for `concurrent.futures.wait`."""
    scheduler.wait_until(lambda: all(call.is_done for call in calls), seconds)
    return SimpleNamespace(done=[call for call in calls if call.is_done])


def threads(scheduler: Scheduler) -> Any:  # noqa: ANN401  # stands for a module
    """Return what stands for the module `threading`."""
    return SimpleNamespace(
        Lock=lambda: Lock(scheduler),
        RLock=lambda: Lock(scheduler, is_reentrant=True),
        Semaphore=lambda count: Semaphore(scheduler, count),
        Thread=partial(Thread, scheduler),
        local=threading.local,
    )


def clock(scheduler: Scheduler, start: float) -> Any:  # noqa: ANN401  # stands for a module
    """Return what stands for the module `time`; the wall clock shows `start` seconds at first."""
    return SimpleNamespace(
        monotonic=lambda: scheduler.now,
        perf_counter=lambda: scheduler.now,
        time=lambda: start + scheduler.now,
        time_ns=lambda: int((start + scheduler.now) * 1e9),
        sleep=scheduler.sleep,
    )
