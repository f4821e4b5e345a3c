#!/usr/bin/env bash
# Look over every source: Python, Cython, shell, spelling, the API's types. Non-zero when anything is found.
# What it needs is the extra `lint` of pyproject.toml, installed where a tool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in ruff cython-lint codespell shellcheck mypy; do
  if ! command -v "$tool" > /dev/null; then
    python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["lint"], sep="\n")' \
      | xargs python -m pip install --quiet
    hash -r
    break
  fi
done

mapfile -t shell < <(find . \( -name .git -o -name .venv -o -name .venv-gpu -o -name build \) -prune \
  -o \( -name '*.sh' -o -name '*.sbatch' -o -path ./.ci/run \) -type f -print)

found=0
look() {
  printf '%s: ' "$1"
  if "$@"; then printf 'nothing found\n'; else found=1; fi
}
look ruff check --quiet .
look cython-lint src
look codespell
look shellcheck --external-sources "${shell[@]}"
look mypy --no-error-summary
exit "$found"
