# shellcheck shell=bash
# Sourced by demo.sh, test.sh and gpu_check.sh: a Python environment in which the project is installed.
#
# Takes the active virtual or conda environment, else makes .venv in the project with
# $PYTHON (default python3). Takes $MPICC or the mpicc on PATH, else installs the mpich wheel.
# TORCH_REQUIREMENT (default torch>=2.11) is what pip is asked for where it is not met yet.
# A script may have set: pip, the words that start it; extras, those of pyproject.toml to install.
# Afterwards `python` is the environment's, $mpirun the launcher that belongs to its MPI.

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment_log=$project/build/environment.log
[[ -v pip ]] || pip=(python -m pip)
extras=${extras-[test,demo,reframe]}
mkdir -p "$project/build"
: > "$environment_log"

stop() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# step WHAT COMMAND...: run the command, its output in the log; show the log's end if it fails.
step() {
  local what=$1 began=$SECONDS
  shift
  printf '%s ... ' "$what"
  printf '\n== %s: %s\n' "$what" "$*" >> "$environment_log"
  if "$@" >> "$environment_log" 2>&1; then
    printf 'done (%d s)\n' $((SECONDS - began))
  else
    printf 'failed\n'
    tail -n 40 "$environment_log" >&2
    stop "'$what' failed; the whole output is in $environment_log"
  fi
}

check_python() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || stop "$(command -v "$1") is $("$1" --version), expected Python 3.11 or newer: set PYTHON"
}

enter_environment() {
  if [[ -n ${VIRTUAL_ENV:-} || -n ${CONDA_PREFIX:-} ]]; then
    check_python python
    printf 'environment: %s (active)\n' "${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
    return
  fi
  local base=${PYTHON:-python3}
  command -v "$base" > /dev/null || stop "no $base found: install Python 3.11 or newer, or set PYTHON"
  check_python "$base"
  if [[ ! -x $project/.venv/bin/python ]]; then
    "$base" -c 'import ensurepip, venv' 2>> "$environment_log" \
      || stop "$base cannot make virtual environments: install its venv module (Debian: apt install python3-venv)"
    step "making $project/.venv" "$base" -m venv "$project/.venv"
  fi
  # shellcheck source=/dev/null
  source "$project/.venv/bin/activate"
  printf 'environment: %s\n' "$VIRTUAL_ENV"
}

check_tools() {
  local compiler=${CXX:-g++}
  # CXX may hold a launcher too, as in "ccache g++".
  command -v "${compiler%% *}" > /dev/null \
    || stop "no C++ compiler: '$compiler' is not on PATH. Install one with C++20 (Debian: apt install g++) or set CXX"
  local include
  include=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  [[ -f $include/Python.h ]] \
    || stop "$include has no Python.h: install Python's headers (Debian: apt install python3-dev)"
}

requirements_for_building() {
  python -c 'import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["build-system"]["requires"], sep="\n")' \
    "$project/pyproject.toml"
}

install_mpi() {
  local mpicc folder
  if ! command -v "${MPICC:-mpicc}" > /dev/null; then
    [[ -z ${MPICC:-} ]] || stop "MPICC is $MPICC, which cannot be run: correct or unset it"
    # An environment below this one may have it, off PATH too.
    step "installing the mpich wheel (no mpicc on PATH)" "${pip[@]}" install --ignore-installed mpich
    hash -r
  fi
  mpicc=$(command -v "${MPICC:-mpicc}")
  folder=$(dirname "$mpicc")
  mpirun=$folder/mpirun
  [[ -x $mpirun ]] || mpirun=$(command -v mpirun) \
    || stop "found $mpicc but no mpirun: install the launcher of that MPI"
  printf 'MPI: %s\n' "$mpicc"
}

# Changes whenever the build's result would.
build_fingerprint() {
  {
    python -c 'import sys
from importlib.metadata import version
print(sys.prefix, sys.version, version("torch"), version("cython"))'
    command -v "${MPICC:-mpicc}"
    printf '%s\n' "${CXX:-}" "${DTORCH_DEBUG:-}" "${DTORCH_SANITIZE:-}"
    find "$project/src" "$project/setup.py" "$project/pyproject.toml" -type f \
      ! -name '*.pyx.cpp' -print0 | sort -z | xargs -0 cat
  } | sha256sum
}

installed_from_here() {
  # From another folder, or the project's own metadata would be found whether installed or not.
  (cd / && python -c 'import importlib.metadata, json, pathlib, sys
direct = importlib.metadata.distribution("dtorch-mpi").read_text("direct_url.json")
sys.exit(json.loads(direct)["url"] != pathlib.Path(sys.argv[1]).as_uri())' "$project") \
    >> "$environment_log" 2>&1
}

build() {
  local stamp=$project/build/fingerprint fingerprint
  fingerprint=$(build_fingerprint)
  if [[ -f $stamp && $(< "$stamp") == "$fingerprint" ]] && installed_from_here; then
    printf 'dtorch-mpi: built already\n'
    return
  fi
  rm -f "$stamp"
  step "building dtorch-mpi" \
    "${pip[@]}" install --no-build-isolation --editable "$project$extras"
  printf '%s' "$fingerprint" > "$stamp"
}

enter_environment
check_tools
step "installing PyTorch" "${pip[@]}" install "${TORCH_REQUIREMENT:-torch>=2.11}"
requirements_for_building > "$project/build/requirements.txt"
step "installing build requirements" "${pip[@]}" install -r "$project/build/requirements.txt"
install_mpi
build
