"""Between this job and the scheduler: when its time ends, and how it asks to be requeued."""

import os
import shutil
import subprocess
from datetime import datetime

from dtorch_mpi.log import LOGGER

REQUEUE_CODE = 85
"""Exit code of a program that has saved and left because it was asked to stop."""


def end_time():
    """When the Slurm job that this process is in will be ended, in seconds since 1970, or None.

    None outside of Slurm, for a job without a limit, and where Slurm does not answer.
    """
    said = os.environ.get("SLURM_JOB_END_TIME", "")
    if said.isdecimal():
        return float(said)
    job = os.environ.get("SLURM_JOB_ID")
    if not job or shutil.which("squeue") is None:
        return None
    # Before Slurm 23.02 the environment does not say.
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%e"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return _seconds(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        LOGGER.warning("Slurm does not say when this job will be ended: %s", error)
        return None


def _seconds(text):
    """Of a time as squeue prints it, in local time; None for N/A or Unlimited."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None
