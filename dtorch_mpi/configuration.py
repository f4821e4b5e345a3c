"""`dt.config`: the settings as attributes, also while the workers run."""

from typing import Any

from . import passes, runtime, settings
from .kernels.alternatives import configure


class Config:
    """Settings (`dtorch_mpi.settings.Settings`) to read and set.

        dt.config.passes = "dead_nodes,memory_reuse"

    Before `dt.init()` each can be set, and wins over the environment; what `dt.init()` is given
    wins over both. While the workers run, `passes` and `streams` (of windows that are met from then
    on; `streams` between communication and branches) and `kernels` can be; another raises
    RuntimeError. Raises AttributeError for a name that is none,
    and ValueError for a value that does not fit.
    """

    def __getattr__(self, name: str) -> Any:
        _check(name)
        running = runtime.current()
        chosen = running.settings if running else settings.from_environment(**settings.preset)
        return getattr(chosen, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _check(name)
        running = runtime.current()
        if running is None:
            changed = settings.preset | {name: value}
            settings.from_environment(**changed)  # raises if it does not fit
            settings.preset.update(changed)
        elif name == "passes":
            passes.chosen(value)
            if running.main.planner is not None:
                running.main.planner.passes = value
            running.settings.passes = value
        elif name == "streams" and "one" not in (value, running.settings.streams):
            settings.from_environment(streams=value)  # raises if it does not fit
            if running.main.planner is not None:
                running.main.planner.streams = value
            running.settings.streams = value
        elif name == "kernels":
            configure(value)
            running.settings.kernels = value
        else:
            raise RuntimeError(
                f"{name} can't change while the workers run: set it before dt.init(), or after "
                "dt.shutdown()"
            )

    def __dir__(self) -> list[str]:
        return list(settings.NAMES)


def _check(name):
    if name not in settings.NAMES:
        raise AttributeError(f"no setting is named {name!r}: expected one of "
                             f"{', '.join(settings.NAMES)}")  # fmt: skip


config = Config()
