#!/usr/bin/env bash
# Prove a machine with a GPU: build, run the tests that GPUs have a part in, measure, write a report.
#
#     scripts/gpu_check.sh [REPORT]                            all of it; REPORT: build/gpu_report.md
#     scripts/gpu_check.sh [REPORT] --only build
#     scripts/gpu_check.sh [REPORT] --only tests [ARGUMENTS]   of pytest; may be repeated
#     scripts/gpu_check.sh [REPORT] --only bench [ARGUMENTS]   of bench_gpu.py
#
# The pieces add to one report; building begins a new one. GPU_CHECK_MINUTES: when to stop; what has not
# run by then, is named. WHEELS (default wheels/ here, if there is one): a folder of wheels, and nothing
# else is asked for. Takes the active environment, else the PyTorch of $PYTHON (default python3), in an
# environment of its own, .venv-gpu. The last line is the verdict; 0: all tests passed, or no GPU here.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 1
}

report=build/gpu_report.md
if (($#)) && [[ $1 != -* ]]; then
  report=$1
  [[ $report == /* ]] || report=$caller/$report
  shift
fi
only=all
if (($#)); then
  [[ $1 == --only && ${2:-} =~ ^(build|tests|bench)$ ]] \
    || refuse "got '$*', expected [REPORT] [--only build|tests|bench [ARGUMENTS]]"
  only=$2
  shift 2
fi

[[ ${GPU_CHECK_MINUTES:-0} =~ ^[0-9]+$ ]] \
  || refuse "GPU_CHECK_MINUTES is '$GPU_CHECK_MINUTES', expected whole minutes"

# ---- a GPU, and a PyTorch for it -----------------------------------------------------------------

gpu_is_there() {
  compgen -G '/dev/nvidia[0-9]*' > /dev/null || [[ $(nvidia-smi -L 2> /dev/null) == *"GPU 0:"* ]]
}

if ! gpu_is_there; then
  echo "gpu_check: no GPU here (nvidia-smi lists none, and there is no /dev/nvidia0): nothing to check"
  exit 0
fi

base=${PYTHON:-python3}
[[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]] || base=python
command -v "$base" > /dev/null || refuse "no $base found: set PYTHON to one that has a PyTorch for CUDA"
# Not by importing dtorch_mpi, which is not built yet.
torch=$("$base" -W ignore - 2>&1 << 'END'
import sys
from importlib.metadata import version

where = f"{sys.executable} (Python {sys.version.split()[0]})"
how = ("install one that is built for CUDA (https://pytorch.org/get-started/locally), activate the "
       "environment that has it, or set PYTHON")
try:
    import torch
except ImportError as error:
    sys.exit(f"there is a GPU, but {where} has no PyTorch ({error}): {how}")
if torch.version.cuda is None:
    sys.exit(f"there is a GPU, but torch {torch.__version__} of {where} is not built for CUDA: {how}")
try:
    torch.zeros(1, device="cuda").item()
except Exception as error:
    sys.exit(f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, can't use the GPU: "
             f"{str(error).splitlines()[0]}. Compare the driver's version in nvidia-smi")
# As pip has it: torch.__version__ names the CUDA too where the wheel's, PyPI's, does not.
print(version("torch"))
END
) || refuse "$torch"
torch=${torch##*$'\n'} # below any warning

# ---- an environment with the project in it -------------------------------------------------------

if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} ]]; then
  mkdir -p build
  options=(--system-site-packages)
  "$base" -c 'import ensurepip' 2> /dev/null || options+=(--without-pip)
  [[ -x .venv-gpu/bin/python ]] || "$base" -m venv "${options[@]}" .venv-gpu \
    || refuse "$base can't make virtual environments: activate one in which torch $torch is installed"
  # Also where the base is a virtual environment itself, whose packages a new one does not have.
  "$base" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
    > "$(.venv-gpu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
  # shellcheck source=/dev/null
  source .venv-gpu/bin/activate
  # environment.sh takes it from here.
  if ! python -m pip --version > /dev/null 2>&1; then
    pip=(pip --python .venv-gpu/bin/python)
    command -v pip > /dev/null || refuse "neither $base nor PATH has pip: install it (python3-pip)"
  fi
fi

# No other PyTorch than this one, whoever asks. Paths from here: pip takes spaces for ends of them.
mkdir -p build
echo "torch==$torch" > build/gpu_constraints.txt
export TORCH_REQUIREMENT=torch==$torch PIP_CONSTRAINT=build/gpu_constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1
wheels=${WHEELS:-wheels}
if [[ -n ${WHEELS:-} || -d $wheels ]]; then
  [[ -d $wheels ]] || refuse "WHEELS is $WHEELS, expected a folder of wheels"
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=$wheels
fi

# What pyproject.toml asks of these packages, a line each.
requirements() {
  python -c 'import re, sys, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
known = {re.match(r"[\w-]+", asked)[0]: asked for asked in extras["test"]}
print(*map(known.get, sys.argv[1:]), sep="\n")' "$@"
}

# shellcheck disable=SC2034 # read by environment.sh
extras=
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
mapfile -t needed < <(requirements pytest pytest-timeout hypothesis)
step "installing what tests need" "${pip[@]}" install "${needed[@]}"
# Tests that would use one of these are skipped without.
mapfile -t wished < <(requirements expecttest scipy safetensors)
for package in "${wished[@]}"; do
  "${pip[@]}" install --retries 0 "$package" >> "$environment_log" 2>&1 \
    || printf 'can not be had here: %s\n' "$package"
done

# ---- tests and figures ---------------------------------------------------------------------------

export DTORCH_DEVICE=gpu
room=build/gpu_check
if [[ $only == all || $only == build ]]; then rm -rf "$room"; fi
mkdir -p "$room"

seconds_left() {
  local end=$((${GPU_CHECK_MINUTES:-0} * 60 - SECONDS))
  ((${GPU_CHECK_MINUTES:-0})) && printf '%d' $((end > 1 ? end : 1)) || printf 86400
}

# run_tests SECONDS ARGUMENTS...: pytest in a process of its own. What ran is noted in $room/runs.tsv.
run_tests() {
  local limit=$1 began=$SECONDS status=0 number run
  shift
  number=$(find "$room" -name '*.log' | wc -l)
  printf -v run '%s/tests-%03d' "$room" "$number"
  printf 'testing %s ... ' "$*"
  # A session ends between tests; only one that hangs is killed.
  timeout --kill-after=30 $((limit + 150)) python -m pytest -m "gpu and not sweep" \
    --session-timeout="$limit" -o junit_family=xunit2 --junit-xml="$run.xml" "$@" \
    > "$run.log" 2>&1 < /dev/null || status=$?
  printf '%s (%d s)\n' "$(tail -n 1 "$run.log")" $((SECONDS - began))
  printf '%s\t%d\t%d\t%s\n' "$run" "$status" $((SECONDS - began)) "$*" >> "$room/runs.tsv"
  [[ -f $run.xml ]]
}

# Folders apart: a crash, or a test that hangs, loses the others of its process.
run_all_tests() {
  local folder file until=$1
  python -m pytest -m "gpu and not sweep" --collect-only -q > "$room/collected.log" 2>&1 \
    || { tail -n 20 "$room/collected.log" >&2; stop "tests can't be collected: $room/collected.log"; }
  sed -n 's|^\(tests/[^:]*\)/[^/:]*::.*|\1|p' "$room/collected.log" | sort -u > "$room/folders.txt"
  while read -r folder; do
    if ((SECONDS >= until)); then
      printf '%s\t%d\t%d\t%s\n' - 124 0 "$folder" >> "$room/runs.tsv"
    elif ! run_tests $((until - SECONDS)) "$folder"; then
      while read -r file; do
        ((SECONDS >= until)) || run_tests $((until - SECONDS)) "$file" || true
      done < <(sed -n "s|^\($folder/[^/:]*\)::.*|\1|p" "$room/collected.log" | sort -u)
    fi
  done < "$room/folders.txt"
}

if [[ $only == all ]]; then
  # A quarter of the time is for the figures.
  run_all_tests $((SECONDS + $(seconds_left) * 3 / 4))
elif [[ $only == tests ]]; then
  if (($#)); then run_tests "$(seconds_left)" "$@" || true; else run_all_tests $((SECONDS + $(seconds_left))); fi
fi
if [[ $only == all || $only == bench ]]; then
  timeout --kill-after=30 "$(seconds_left)" python scripts/bench_gpu.py --out "$room/figures.json" "$@" \
    || printf 'bench_gpu.py ended with %d\n' $?
fi

python scripts/gpu_report.py "$room" "$report" --seconds $SECONDS
