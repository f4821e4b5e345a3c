"""The shared memory that MPICH leaves behind where a rank is killed."""

import os


def shared_memory_of(pid):
    """The names in /dev/shm, but for their last digits, of what MPICH made for this process's job.

    Under srun they come from the ids of job and step, which a requeued job has again: MPI can't
    start in it where the first run was killed and has left them. And they take memory until then.
    """
    start = "/dev/shm/mpich_shm_"
    try:
        with open(f"/proc/{pid}/maps") as file:
            paths = {line[line.index(start):].rstrip() for line in file if start in line}
    except OSError:
        return ()
    return tuple({os.path.basename(path).rstrip("0123456789") for path in paths})


def remove_shared_memory(names):
    for name in os.listdir("/dev/shm") if names else ():
        if name.startswith(names):
            try:
                os.unlink(os.path.join("/dev/shm", name))
            except OSError:
                continue  # another rank's watcher has removed it
