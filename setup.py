"""Build the extensions against the installed LibTorch and the MPI that mpicc names.

One extension a concern. Each may link the files of those before it that it names:

    dtorch_mpi._core             src/tensor, src/capture, src/wire,  C++, a thin Cython face
                                 src/profiling
    dtorch_mpi._sharding         src/sharding                        C++
    dtorch_mpi._controller       src/controller                      Cython
    dtorch_mpi._random           src/random                          C++
    dtorch_mpi._worker           src/worker                          Cython
    dtorch_mpi._transport        src/transport                       Cython
    dtorch_mpi._collectives      src/collectives                     C++ (c10d::Backend)
    dtorch_mpi._mpi_collectives  src/collectives/mpi                 C++ (c10d::Backend)
    dtorch_mpi._mpi              src/transport/mpi                   Cython

The last two are left out without an mpicc. dtorch_mpi/build_record.py, which `python -m dtorch_mpi
info` compares with what runs, is written beside them.

Settings: MPICC (the compiler wrapper to ask), DTORCH_DEBUG=1 (debug symbols, less
optimization, and the C++ library's assertions: each index of a vector is checked),
DTORCH_SANITIZE=address (AddressSanitizer), DTORCH_ONLY (names of the extensions to build, with
commas between, where the others are there).
"""

import os
import platform
import pprint
import shlex
import shutil
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, include_paths, library_paths

ROOT = Path(__file__).parent
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


LINKS = {}  # extension -> those whose files it links


def mpi_flags():
    """Ask mpicc for its include and link flags; None when no MPI is found."""
    mpicc = os.environ.get("MPICC") or shutil.which("mpicc")
    if mpicc is None:
        print("setup.py: no mpicc on PATH and MPICC is not set: building without MPI")
        return None
    shown = subprocess.run([mpicc, "-show"], capture_output=True, text=True, check=True).stdout
    words = shlex.split(shown)[1:]
    compile_flags = [w for w in words if w.startswith(("-I", "-D", "-pthread"))]
    # mpicc does not link the old C++ bindings, which mpi.h would otherwise bring in.
    compile_flags += ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
    link_flags = [w for w in words if w.startswith(("-L", "-l", "-Wl,"))]
    print(f"setup.py: MPI from {mpicc}: {' '.join(compile_flags + link_flags)}")
    return compile_flags, link_flags


def mpi_version():
    """Name and version of the MPI that mpicc compiles against, from the macros of its mpi.h."""
    mpicc = os.environ.get("MPICC") or shutil.which("mpicc")
    if mpicc is None:
        return "none"
    shown = subprocess.run([mpicc, "-E", "-dM", "-x", "c", "-"], input="#include <mpi.h>\n",
                           capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in shown.splitlines()]
    macros = {words[1]: words[2].strip('"') for words in lines if len(words) == 3}
    if "OMPI_MAJOR_VERSION" in macros:
        return "Open MPI " + ".".join(
            macros[f"OMPI_{part}_VERSION"] for part in ("MAJOR", "MINOR", "RELEASE"))
    for name, macro in (("Intel MPI", "I_MPI_VERSION"), ("MVAPICH", "MVAPICH_VERSION"),
                        ("MPICH", "MPICH_VERSION")):
        if macro in macros:
            return f"{name} {macros[macro]}"
    return f"unknown, of MPI {macros.get('MPI_VERSION')}.{macros.get('MPI_SUBVERSION')}"


def build_record():
    """What this build is made of."""
    import torch

    compiler = shlex.split(os.environ.get("CXX", "g++"))
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True)
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "MPI": mpi_version(),
        "mpicc": os.environ.get("MPICC") or shutil.which("mpicc") or "none",
        "compiler": said.stdout.splitlines()[0],
        "Cython": version("cython"),
        "settings": " ".join(f"{name}={os.environ[name]}" for name in (
            "DTORCH_DEBUG", "DTORCH_SANITIZE") if name in os.environ) or "none",
    }


def sources(*rooms):
    """All C++ and Cython sources of the named rooms, in a fixed order."""
    found = []
    for room in rooms:
        folder = ROOT / "src" / room
        found += [p for p in sorted(folder.glob("*.cpp")) if not p.name.endswith(".pyx.cpp")]
        found += sorted(folder.glob("*.pyx"))
    return [str(p.relative_to(ROOT)) for p in found]


def extension(name, files, compile_flags=(), link_flags=(), links=()):
    """An extension of the package; `links` names the ones before it whose files it links."""
    debug = os.environ.get("DTORCH_DEBUG") == "1"
    sanitize = os.environ.get("DTORCH_SANITIZE")
    cxx = ["-std=c++20", "-g1", "-fvisibility=default", "-Wall", "-Wno-sign-compare",
           "-Wno-unused-function", "-Wno-unused-variable", "-Wno-cpp", "-Wno-attributes"]
    # NDEBUG stays, as in LibTorch's wheels: its headers lay out some classes by it.
    cxx += ["-DNDEBUG", *(["-O1", "-g", "-D_GLIBCXX_ASSERTIONS"] if debug else ["-O2"])]
    link = []
    if sanitize:
        cxx.append(f"-fsanitize={sanitize}")
        link.append(f"-fsanitize={sanitize}")
    # Before Python's own include folder, where an MPI wheel may have put another mpi.h.
    own_includes = [flag[2:] for flag in compile_flags if flag.startswith("-I")]
    LINKS[f"dtorch_mpi.{name}"] = [f"dtorch_mpi.{other}" for other in links]
    return Extension(
        f"dtorch_mpi.{name}",
        files,
        language="c++",
        include_dirs=[str(ROOT / "src"), *own_includes, *include_paths()],
        library_dirs=library_paths(),
        libraries=["c10", "torch", "torch_cpu", "torch_python"],
        extra_compile_args=cxx + list(compile_flags),
        extra_link_args=link + [f"-Wl,-soname,{name}{EXT_SUFFIX}"]
        + [f"-Wl,-rpath,{p}" for p in library_paths()] + list(link_flags),
    )


class BuildInOrder(BuildExtension):
    """Build in the order of the list: the later ones link the files that the earlier make."""

    def run(self):
        super().run()
        beside = Path(self.get_ext_fullpath("dtorch_mpi._core"))
        beside.with_name("build_record.py").write_text(
            '"""What the extensions beside this were built of; written by setup.py."""\n\n'
            f"RECORD = {pprint.pformat(build_record(), sort_dicts=False)}\n")

    def build_extension(self, ext):
        files = [str(Path(self.get_ext_fullpath(name)).absolute()) for name in LINKS[ext.name]]
        if files:
            ext.extra_link_args = [*ext.extra_link_args, *files, "-Wl,-rpath,$ORIGIN"]
        super().build_extension(ext)


extensions = [
    extension("_core", sources("tensor", "capture", "wire", "profiling")),
    # -O3: the reductions are loops for the vectorizer.
    extension("_collectives", sources("collectives"), compile_flags=["-O3"]),
    extension("_sharding", sources("sharding"), links=["_core"]),
    extension("_transport", sources("transport"), links=["_core", "_sharding"]),
    extension("_controller", sources("controller"), links=["_core"]),
    # No contraction into fused multiply-adds: machines must give the same bits.
    extension("_random", sources("random"),
              compile_flags=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]),
    # Without it ATen's parallel_for, which is a header's, has one thread. Not linked: the symbols
    # are those of the OpenMP that LibTorch itself has loaded.
    extension("_worker", sources("worker"), compile_flags=["-fopenmp"],
              links=["_core", "_sharding", "_random"]),
]
mpi = mpi_flags()
if mpi is not None:
    extensions += [
        extension("_mpi_collectives", sources("collectives/mpi"), *mpi, links=["_collectives"]),
        extension("_mpi", sources("transport/mpi"), *mpi,
                  links=["_core", "_sharding", "_mpi_collectives", "_collectives"]),
    ]
only = os.environ.get("DTORCH_ONLY")
extensions = [ext for ext in extensions if ext.sources
              and (only is None or ext.name.rpartition(".")[2] in only.split(","))]

setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
        },
        include_path=["src"],
        build_dir="build/cython",
    ),
    cmdclass={"build_ext": BuildInOrder},
)
