"""Refuse a job whose processes do not know of each other, or that mixes two MPIs.

With the wrong --mpi, or an mpirun of one MPI and a library of another, N processes each see a
world of one, run the whole script N times and exit with 0. With extensions that were built against
another MPI than mpi4py loads, MPI ends the process without saying why.
"""

import os

from dtorch_mpi.built_against import built_against
from dtorch_mpi.launch.library import file_of_mpi, loaded_library


def check_launcher(launch, library, variables=None):
    """Raise RuntimeError where this library can't meet its peers, before MPI is initialized.

    MPI would end the process itself, with a text of its own.
    """
    variables = os.environ if variables is None else variables
    only_pmix = "PMIX_RANK" in variables and not {"PMI_RANK", "PMI_FD"} & variables.keys()
    if launch is None or launch.size <= 1 or not only_pmix or "pmix" in library.meets:
        return
    raise RuntimeError("\n".join([
        f"{_started(launch)}, by PMIx, which the MPI library of mpi4py was built without: they "
        "would not find each other.", *_library_and_fix(launch, library)]))


def check_extensions(library=None):
    """Raise RuntimeError unless our extensions call the same MPI library as mpi4py.

    Call it before MPI is initialized: it loads the extensions, and their library with them.
    """
    built = built_against().get("MPI", "an MPI that was not recorded")
    library = library or loaded_library()
    advice = (
        f"The extensions of dtorch_mpi were built against {built}; mpi4py has loaded "
        f"{library.path or 'a library'} ({library.version}).\n"
        "Fix: build dtorch_mpi against the MPI that you run with (MPICC=/path/mpicc pip install "
        "--no-build-isolation ., and its mpirun), or have mpi4py load the one that it was built "
        "against: load its module, or set MPI4PY_LIBMPI=/path/libmpi.so or LD_LIBRARY_PATH.")
    try:
        from dtorch_mpi import _mpi
    except ImportError as error:
        raise RuntimeError(
            f"the part of dtorch_mpi that calls MPI can't be loaded: {error}.\n{advice}") from error
    ours = file_of_mpi(_mpi)
    if ours and library.path and os.path.realpath(ours) != os.path.realpath(library.path):
        raise RuntimeError(
            f"two MPI libraries in one process: the extensions of dtorch_mpi call {ours}, mpi4py "
            f"calls {library.path}. No rank would find the others.\n{advice}")


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
    return "\n".join([
        f"{_started(launch)}, but MPI says that the world has 1: each would run the whole script "
        "by itself.", *_library_and_fix(launch, library)])


def _started(launch):
    said = ", ".join(f"{name}={value}" for name, value in launch.variables)
    return f"{launch.launcher} started {launch.size} processes ({said})"


def _library_and_fix(launch, library):
    return [
        f"MPI library of mpi4py: {library.path or 'path unknown'} ({library.version})",
        *_fix(launch, library),
        "Which library mpi4py loads: python -m mpi4py --mpi-library; MPI4PY_LIBMPI=/path/libmpi.so "
        "chooses another.",
    ]


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
