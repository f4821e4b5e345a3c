"""What the package logs: the logger `dtorch_mpi`, each line with the rank that says it."""

import logging
import os
import socket

LOGGER = logging.getLogger("dtorch_mpi")


def configure(settings, launch):
    """Have this rank log as the settings say; dt.init() calls it.

    Only the ranks of `log_ranks` log to stderr, and none where the program has handlers of its own
    (`logging.basicConfig()`), which get the records as any other logger's.

    Args:
        settings: a Settings.
        launch: the Launch of environment.detect(), or None.
    """
    for handler in [h for h in LOGGER.handlers if getattr(h, "of_dtorch_mpi", False)]:
        LOGGER.removeHandler(handler)
        handler.close()
    rank, size = (launch.rank, launch.size) if launch else (0, 1)
    level = settings.log.upper()
    # Left as it is where nobody says: the program may have set it.
    if level or settings.log_folder:
        LOGGER.setLevel(level or "INFO")
    _add(logging.NullHandler(), "")  # or logging would show warnings where nothing else does
    shown = settings.log_ranks
    if shown == "all" or str(rank) in [number.strip() for number in shown.split(",")]:
        where = f"[rank {rank}/{size} {socket.gethostname()}] "
        prefix = where if settings.log_prefix and size > 1 else ""
        console = logging.StreamHandler()
        console.setLevel(level or ("WARNING" if settings.log_folder else "NOTSET"))
        console.addFilter(lambda record: not logging.getLogger().handlers)
        _add(console, prefix.replace("%", "%%") + "%(levelname)s %(name)s: %(message)s")
    if settings.log_folder:
        path = os.path.join(settings.log_folder, f"rank{rank:05}.log")
        try:
            os.makedirs(settings.log_folder, exist_ok=True)
            file = logging.FileHandler(path)
        except OSError as error:
            reason = f"can't log to {path}: {error.strerror} (DTORCH_LOG_FOLDER)"
            raise ValueError(reason) from error
        _add(file, "%(asctime)s %(levelname)s %(name)s: %(message)s")


def _add(handler, form):
    handler.of_dtorch_mpi = True
    handler.setFormatter(logging.Formatter(form))
    LOGGER.addHandler(handler)
