"""The ReFrame checks as a site runs them: through sbatch and srun."""

import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).parents[1] / "reframe"


def test_checks_pass_under_slurm(cluster, tmp_path):
    command = [
        Path(sys.executable).with_name("reframe"), "--nocolor", "--system=cluster",
        "-C", CHECKS / "settings.py", "-c", CHECKS, "-r", "--prefix", tmp_path,
        "--report-file", tmp_path / "report.json", "-n", "^CollectivesCheck%num_workers=2$",
    ]  # fmt: skip
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100,
                           cwd=tmp_path, env=cluster.environment | {"TMPDIR": str(tmp_path)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Ran 1/1 test case(s) from 1 check(s) (0 failure(s)" in ended.stdout, ended.stdout
