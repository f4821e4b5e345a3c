"""In which order a save reaches the disk: a kill can't show it, the kernel goes on writing."""

import re
import shutil
import sys
from dataclasses import dataclass

import pytest
from launching import run_job

SAVE = """
import sys
import torch
import dtorch_mpi as dt
dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))
state = {"x": dt.ones(10, 4, mesh=mesh, placements=[dt.Shard(0)]), "own": torch.ones(3), "n": 1}
for _ in range(2):
    dt.checkpoint.save(sys.argv[1], state, keep=1)
"""
LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))")


@dataclass
class Call:
    """A system call, and the lines of strace's between which it ran."""

    name: str
    text: str
    began: int
    ended: int


def calls(text):
    """The system calls that strace has seen, in the order they began."""
    found, open_calls = [], {}
    for number, line in enumerate(text.splitlines()):
        matched = LINE.match(line)
        if matched is None:
            continue
        pid, name, arguments, _, rest = matched.groups()
        if name is None:
            # Another thread's came between its beginning and its end.
            call = open_calls.pop(pid)
            call.text, call.ended = call.text + rest, number
            continue
        found.append(Call(name, arguments, number, number))
        if arguments.endswith("<unfinished ...>"):
            open_calls[pid] = found[-1]
    # A call that a signal interrupted is begun again.
    return [call for call in found if "= ?" not in call.text]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_synced_before_renamed_and_the_manifest_last(tmp_path, launcher):
    if shutil.which("strace") is None:
        pytest.skip("no strace command: install the package strace")
    script, log = tmp_path / "save.py", tmp_path / "log"
    script.write_text(SAVE)
    traced = tmp_path / "traced"
    # Each process writes whole lines of its own, so that their order is the kernel's.
    traced.write_text(
        f"#!/bin/sh\nexec strace -f -y -A -o {log} -e trace=openat,fsync,write,pwrite64,rename,"
        f'unlink,unlinkat,rmdir {sys.executable} "$@"\n'
    )
    traced.chmod(0o755)
    root = tmp_path / "saved"
    ended = run_job(script, root, launcher=launcher, workers=2, limit=180, python=str(traced))
    if "Operation not permitted" in ended.err and not root.exists():
        pytest.skip("strace is not permitted here")
    assert ended.code == 0, ended.err
    seen = calls(log.read_text())
    renames = [call for call in seen if call.name == "rename" and str(root) in call.text]
    # Two that publish, and the old one's name going away.
    assert [".writing-" in call.text.split(",")[0] for call in renames] == [True, True, False]
    aside = re.search(r'"([^"]*\.writing-[^"]*)"', renames[0].text)[1]

    def on(path, *names):
        """The calls of those names on a file or folder, told by path or descriptor."""
        return [call for call in seen
                if call.name in names and re.search(rf'[<"]{re.escape(str(path))}[>"]', call.text)]

    synced = []
    for name in ("worker-00000.h5", "worker-00001.h5", "index.h5", "state.json", "manifest.json"):
        sync = on(f"{aside}/{name}", "fsync")[-1]
        writes = on(f"{aside}/{name}", "write", "pwrite64")
        assert writes, name
        assert max(call.ended for call in writes) < sync.began, f"{name}: synced when written"
        synced.append(sync)
    manifest_made = min(call.began for call in on(f"{aside}/manifest.json", "openat"))
    assert max(call.ended for call in synced[:-1]) < manifest_made, "it says what is on the disk"
    (folder_synced,) = on(aside, "fsync")
    assert synced[-1].ended < folder_synced.began, "the folder has all names"
    assert folder_synced.ended < renames[0].began
    first, second = on(root, "fsync")
    assert renames[0].ended < first.began
    # The old one goes when the new one's name is on the disk.
    assert renames[1].ended < second.began
    assert second.ended < renames[2].began
    removed = [call.began for call in seen
               if call.name in ("unlink", "unlinkat") and "worker-0" in call.text]  # fmt: skip
    assert removed
    assert min(removed) > renames[2].ended
