#!/usr/bin/env bash
# Install, build and train the demo GPT under mpirun: a controller and two workers.
# Further arguments go to scripts/train_gpt.py; RANKS (default 3) is the number of processes.
set -euo pipefail

# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$project"

ranks=${RANKS:-3}
out=out/demo
launch=("$mpirun" -n "$ranks")
if [[ $("$mpirun" --version 2>&1) == *"Open MPI"* ]]; then
  # Open MPI pins ranks to cores, and refuses root and more ranks than cores unless told.
  launch+=(--bind-to none --oversubscribe)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

python scripts/prepare_corpus.py "$out/corpus.h5"
rm -f "$out/metrics.json"
"${launch[@]}" python scripts/train_gpt.py "$out/corpus.h5" --out "$out" "$@"

python - "$out" "$ranks" <<'END'
import json, pathlib, sys

out = pathlib.Path(sys.argv[1])
metrics = json.loads((out / "metrics.json").read_text())
print(
    f"demo done: {metrics['workers']} workers trained a GPT of {metrics['parameters']:,} parameters "
    f"for {len(metrics['losses'])} steps; held-out loss {metrics['held_out_loss']:.3f} nats per "
    f"byte; see loss.png, sample.txt and metrics.json in {out.resolve()}"
)
END
