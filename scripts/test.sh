#!/usr/bin/env bash
# Install, build and run the tests. Further arguments go to pytest; -m sweep runs the long ones.
# Non-zero when a test failed or none ran.
set -euo pipefail

# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$project"

report=build/tests.xml
rm -f "$report"
status=0
python -m pytest --junit-xml="$report" "$@" || status=$?
[[ -f $report ]] || stop "pytest ended with status $status and no report"

python - "$report" "$status" <<'END'
import sys
import xml.etree.ElementTree as ElementTree

suites = list(ElementTree.parse(sys.argv[1]).iter("testsuite"))
count = {
    key: sum(int(suite.get(key)) for suite in suites)
    for key in ("tests", "failures", "errors", "skipped")
}
failed = count["failures"] + count["errors"]
passed = count["tests"] - failed - count["skipped"]
status = int(sys.argv[2]) or int(failed > 0 or passed == 0)
verdict = "tests passed" if status == 0 else "tests FAILED" if failed else "tests DID NOT RUN"
seconds = sum(float(suite.get("time")) for suite in suites)
print(f"{verdict}: {passed} passed, {failed} failed, {count['skipped']} skipped in {seconds:.0f} s")
sys.exit(status)
END
