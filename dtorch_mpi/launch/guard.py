"""Refuse a job whose processes do not know of each other.

With the wrong --mpi, or an mpirun of one MPI and a library of another, N processes each see a
world of one, run the whole script N times and exit with 0.
"""

from dtorch_mpi.launch.library import loaded_library


def check_world(launch, mpi_size, library=None):
    """Raise RuntimeError when the launcher started several ranks and MPI sees only this one.

    Args:
        launch: the Launch of environment.detect(), or None.
        mpi_size: size of MPI_COMM_WORLD.
        library: the Library in use; asked of mpi4py when it is needed.
    """
    if launch is None or launch.size <= 1 or mpi_size != 1:
        return
    raise RuntimeError(_text(launch, library or loaded_library()))


def _text(launch, library):
    said = ", ".join(f"{name}={value}" for name, value in launch.variables)
    lines = [
        f"{launch.launcher} started {launch.size} processes ({said}), but MPI says that the world "
        "has 1: each would run the whole script by itself.",
        f"MPI library of mpi4py: {library.path or 'path unknown'} ({library.version})",
        *_fix(launch, library),
        "Which library mpi4py loads: python -m mpi4py --mpi-library; MPI4PY_LIBMPI=/path/libmpi.so "
        "chooses another.",
    ]
    return "\n".join(lines)


def _fix(launch, library):
    if launch.launcher == "srun":
        plugin = {"openmpi": "pmix", "mpich": "pmi2"}.get(library.family)
        if plugin is None:
            return ["Likely cause: srun's --mpi does not fit this library. Fix: try another of "
                    "those that `srun --mpi=list` shows."]
        other = " (with an MPICH built for it: --mpi=pmix)" if plugin == "pmi2" else ""
        return [
            f"Likely cause: srun's --mpi (or the site's default) is not {plugin}, by which this "
            "library meets its peers.",
            f"Fix: srun --mpi={plugin} ...{other}. `srun --mpi=list` shows what the site has; if "
            f"{plugin} is not among them, load the site's own MPI module instead.",
        ]
    started_by = {"mpirun of Open MPI": "openmpi", "mpirun of MPICH (Hydra)": "mpich",
                  "mpirun of MVAPICH": "mpich"}.get(launch.launcher, "unknown")
    own = {"openmpi": "Open MPI", "mpich": "MPICH"}.get(library.family, "the library")
    if started_by == library.family and started_by != "unknown":
        cause = (f"Likely cause: two installations of {own}: the mpirun of one and the library of "
                 "the other.")
    else:
        cause = "Likely cause: two MPIs: this launcher belongs to another MPI than the library."
    return [
        cause,
        f"Fix: start with the mpirun beside that library (`python -m dtorch_mpi launch -n "
        f"{launch.size} script.py` finds it), or have mpi4py load the library of this launcher's "
        "MPI (load its module, or set LD_LIBRARY_PATH).",
    ]
