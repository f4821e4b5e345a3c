"""The runtime: who is client, controller and worker, and the life of a job."""

import socket
import threading

import torch

from . import _core, log
from .fusion import kernels as fused_kernels
from .future import VoidFuture
from .job import Runtime
from .kernels.alternatives import configure
from .settings import from_environment, preset
from .thread_workers import ThreadWorkers
from .watching.thread_watchdog import ThreadWatchdog

_lock = threading.RLock()
_current = None
_forked = False
_over = False
# Asked first at the end, and by shutdown(): functions that wait for what goes on beside the
# program, and return an error that nobody was told of, or None.
before_shutdown = []


def init(
    workers: int | None = None, cohost: bool | None = None, **settings: int | str | bool
) -> None:
    """Start the workers. On a worker rank this never returns.

    workers: how many worker threads, where there is no launcher (DTORCH_WORKERS).
    cohost: whether rank 0 hosts a worker too (DTORCH_COHOST).
    settings: others of `dtorch_mpi.settings.Settings`, each of which the environment can give too.

    Calling it is optional where one worker thread is enough: the first use of the device
    does. Raises RuntimeError when the workers run already, or the ranks do not agree;
    TypeError for a setting that does not exist.
    """
    global _current
    given = {"workers": workers, "cohost": cohost, **settings}
    given = {name: value for name, value in given.items() if value is not None}
    with _lock:
        if _current is not None:
            _check_running(given)
            return
        if _forked:
            raise RuntimeError(
                "this process was forked from one that uses the dtorch device, and has no "
                "workers; in a DataLoader worker use CPU tensors, or the 'spawn' start method"
            )
        if _over:
            raise RuntimeError(
                "the program is ending and its dtorch workers have stopped: use the device before, "
                "in an atexit function registered after dtorch_mpi was imported at the latest"
            )
        from .launch.environment import detect

        chosen = from_environment(**preset | given)
        launch = detect()
        log.configure(chosen, launch)
        configure(chosen.kernels)
        fused_kernels.configure(chosen)
        _core.capture_users_operators()  # those of libraries that were loaded by other ways
        if launch is not None and launch.size > 1:
            from .mpi_runtime import start

            _current = start(chosen, launch)
        else:
            _current = _start_threads(chosen)
        # Backward passes run on the calling thread: a hop to another one costs more than
        # capturing does.
        torch.autograd.set_multithreading_enabled(False)


def _check_running(given):
    from_environment(**given)  # raises for what is no setting
    wanted = dict(given)
    if "workers" in wanted and wanted.pop("workers") != _current.num_workers:
        raise RuntimeError(
            f"dtorch_mpi runs already, with {_current.num_workers} workers, and {given['workers']} "
            "were asked for: call dtorch_mpi.init() before the first use of the device"
        )
    for name, value in wanted.items():
        if (runs := getattr(_current.settings, name)) != value:
            raise RuntimeError(
                f"dtorch_mpi runs already, with {name}={runs!r}, and {value!r} was asked for: call "
                "dtorch_mpi.init() before the first use of the device, or set dt.config where that "
                "can change"
            )


def _start_threads(settings):
    from torch.distributed import HashStore

    from ._collectives import ThreadGroups, delay_collectives
    from .device_groups import DeviceGroups, any_nccl
    from .launch.announcement import Place, announce
    from .launch.cpus import affinity, worker_threads
    from .launch.placement import check_devices, device_for, worker_device

    delay_collectives(settings.collective_delay_us)
    devices = [worker_device(device_for(index, settings.device))
               for index in range(settings.workers)]
    check_devices(settings.device, devices)
    by_threads = ThreadGroups()
    groups = DeviceGroups(devices, by_threads.maker(), HashStore() if any_nccl(devices) else None,
                          by_threads.abort)  # fmt: skip
    mask = affinity()
    threads = worker_threads(settings.threads, [mask] * settings.workers)
    hosted = ThreadWorkers(0, [worker.device for worker in devices], settings.workers, settings,
                           threads.number, groups.maker())  # fmt: skip
    host = socket.gethostname()
    announce([Place(0, host, mask, *threads, "memory", device) for device in devices])
    dog = None
    if seconds := settings.watchdog_seconds:
        dog = ThreadWatchdog(lambda: hosted.all_workers, settings.workers, seconds)

    def stop():
        if dog is not None:
            dog.stop()
        hosted.join()
        groups.shutdown()

    running = Runtime(settings, hosted, lambda graph: [hosted.link_for(graph)], devices, stop)
    running.groups = groups
    running.start()
    return running


def runtime():
    """The running one; starts it on first use."""
    if _current is None:
        init()
    return _current


def current():
    return _current


def is_initialized() -> bool:
    """Whether the workers run."""
    return _current is not None


def num_workers() -> int:
    """How many workers this job has."""
    return runtime().num_workers


def sync() -> None:
    """Wait until the workers have executed everything issued; raises WorkerError for a failure."""
    sync_future().get()


def sync_future() -> VoidFuture:
    """A VoidFuture that is ready when everything issued so far is executed."""
    running = runtime()
    return VoidFuture(running, running.ask_sync)


def shutdown() -> None:
    """End the workers. Raises WorkerError for a failure that nobody has read.

    Waits for a checkpoint that is being written, and raises its error if it fails. Called at
    exit. Tensors on the device can't be used afterwards; in a process without a launcher, init()
    may be called again.
    """
    global _current
    with _lock:
        if _current is None:
            return
        untold = [error for finish in before_shutdown if (error := finish()) is not None]
        for engine in _current.engines.values():
            if engine.planner is not None:
                engine.planner.stop()  # it may issue something, which must not start workers anew
        running, _current = _current, None
        failures = untold + running.close()
        from .mesh import forget_all

        forget_all()
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"Another operator failed, and nobody read its result:\n{other}")
        raise failures[0]


def end():
    """The program is over: returns the runtime, or None, and lets no other begin."""
    global _current, _over
    for engine in _current.engines.values() if _current is not None else ():
        if engine.planner is not None:
            engine.planner.halt()
    running, _current = _current, None
    _over = True
    return running


def in_forked_child():
    return _forked


def can_start():
    """Whether this process may have workers, now or again."""
    return not (_forked or _over)


def forget_after_fork():
    """In a forked child: the workers' threads do not exist here."""
    global _forked, _current
    if _current is not None:
        _forked = True
        # Never freed: its locks belong to threads that do not exist here.
        _core.forget_after_fork(_current, [n for n in _current.engines if n != 0])
        _current = None
