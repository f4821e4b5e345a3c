"""Run a Slurm cluster on this machine: munged, slurmctld and a slurmd for each of two nodes.

    python tests/slurm/slurm_daemons.py      # as root

Prints "ready" and the path of its configuration once both nodes are idle, and takes everything
down when its stdin ends: with the process that holds the other end, whatever becomes of that one.
With that path as SLURM_CONF, sbatch, srun and scontrol speak to this cluster.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

NODES = ("n1", "n2")
CPUS = 4  # of each node; there need not be as many
GPUS = 2  # of each node; there is none, but jobs may ask for them

# Nothing here needs systemd, cgroups or a name service. Job ids are new ones each time, as MPICH
# names its shared memory after them, and a job that is killed leaves it.
SLURM_CONF = """\
ClusterName=dtorch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
FirstJobId={first_job}
ReturnToService=2
KillWait=5
MpiDefault=none
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:{gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} Gres=gpu:{gpus}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def what_is_missing():
    """Why no cluster can be started here, and what is needed; "" if one can."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
    missing = [name for name in programs if shutil.which(name, path=search_path()) is None]
    if missing:
        return (f"no {', '.join(missing)}: install Slurm (Debian: apt install "
                "--no-install-recommends slurm-wlm munge)")
    if os.geteuid() != 0:
        return "slurmd starts jobs and munged changes its user only as root: run the tests as root"
    return ""


def search_path():
    """PATH with the folders of daemons, which users' PATHs may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def write_configuration(folder):
    # Ports that are free now; Slurm can't be told to choose.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
    host = socket.gethostname().partition(".")[0]
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(folder=folder, host=host, ports=ports, cpus=CPUS, gpus=GPUS,
                          first_job=1 + secrets.randbelow(60_000_000)))
    # No plugin here uses cgroups, but slurmd does not start where it can't tell their version.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    # Slurm wants device files, whatever they are.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    user = pwd.getpwnam("munge")
    for path in (munge, key):
        os.chown(path, user.pw_uid, user.pw_gid)


def start_munged(folder, start):
    munge = folder / "munge"
    user = pwd.getpwnam("munge")
    daemon = start(
        "munged", "--foreground", "--origin=127.0.0.1", f"--socket={munge}/socket",
        f"--key-file={munge}/key", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed",
        user=user.pw_uid, group=user.pw_gid, extra_groups=[],
    )  # fmt: skip
    wait_until(lambda: (munge / "socket").exists(), "munged made no socket", [daemon])


def wait_until(ready, failure, daemons, seconds=30):
    until = time.monotonic() + seconds
    while not ready():
        for daemon in daemons:
            if daemon.poll() is not None:
                raise RuntimeError(
                    f"{failure}: {daemon.args[0]} ended with code {daemon.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"{failure} within {seconds} s")
        time.sleep(0.05)


def ask(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


def all_idle():
    return ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES)


def processes_of(conf):
    """(pid, command line) of each process that was started with this SLURM_CONF."""
    mark = b"\0SLURM_CONF=" + os.fsencode(conf) + b"\0"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = b"\0" + (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if mark in environment:
            found.append((int(process.name), command.replace(b"\0", b" ").decode(errors="replace")))
    return found


def take_down(conf, daemons):
    """End the daemons, and then what jobs have left: those are no children of ours."""
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    while left := processes_of(conf):
        for pid, _ in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main():
    # A Ctrl-C is for the one that holds our stdin, who decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Not in a folder where others may not look in: munged has a user of its own.
    folder = Path(tempfile.mkdtemp(prefix="dtorch-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    conf = folder / "slurm.conf"
    os.environ["SLURM_CONF"] = str(conf)
    os.environ["PATH"] = search_path()
    daemons = []

    def start(*command, **options):
        with open(folder / f"{len(daemons)}-{command[0]}.out", "w") as output:
            daemons.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, **options,
            ))  # fmt: skip
        return daemons[-1]

    try:
        write_configuration(folder)
        start_munged(folder, start)
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        wait_until(all_idle, "the nodes did not become idle", daemons)
        print(f"ready {conf}", flush=True)
        sys.stdin.read()
    except RuntimeError as error:
        print(error)
        for log in sorted(folder.glob("*.out")):
            print(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        sys.exit(1)
    finally:
        take_down(conf, daemons)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
