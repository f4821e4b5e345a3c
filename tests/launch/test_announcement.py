import pytest

from dtorch_mpi.launch.announcement import Place, job_line, oversubscription
from dtorch_mpi.launch.placement import WorkerDevice

CPU = WorkerDevice("cpu", "n1", "n1 cpu", False)
GPUS = [WorkerDevice(f"cuda:{index}", "n1", f"GPU-{index}", True) for index in range(2)]
PLACE = Place(0, "n1", frozenset(range(4)), 2, "the affinity mask", "shared", CPU)
FAR = Place(2, "n2", frozenset(range(4)), 4, "the affinity mask", "network", CPU)


@pytest.mark.parametrize("workers, text", [
    ([PLACE] * 2, "2 workers on 1 host, on CPUs (no GPU seen), 2 threads each (from the affinity "
                  "mask), values come back by shared memory"),
    ([PLACE, FAR, FAR], "3 workers on 2 hosts, on CPUs (no GPU seen), 2 to 4 threads each "
                        "(from the affinity mask), values come back by shared memory from 1, "
                        "by the network from 2"),
    ([PLACE._replace(threads=1, source="OMP_NUM_THREADS", home="memory")],
     "1 worker on 1 host, on CPUs (no GPU seen), 1 thread each (from OMP_NUM_THREADS), "
     "values come back in this process"),
])
def test_job_line(workers, text):
    assert job_line(workers).endswith(f": {text}")


@pytest.mark.parametrize("devices, text", [
    (GPUS, "on 2 GPUs"),
    (GPUS[:1] * 2, "on 1 GPU"),
    ([*GPUS, CPU], "2 on 2 GPUs and 1 on CPUs (no GPU seen)"),
    ([CPU._replace(sees_gpu=True)] * 2, "on CPUs (DTORCH_DEVICE=cpu)"),
])
def test_devices(devices, text):
    assert f" 1 host, {text}, " in job_line([PLACE._replace(device=device) for device in devices])


@pytest.mark.parametrize("threads, source, number, warned", [
    (2, "the affinity mask", 3, False),  # more ranks than cores: no setting of ours mends it
    (1, "OMP_NUM_THREADS", 9, False),
    (2, "OMP_NUM_THREADS", 2, False),
    (4, "OMP_NUM_THREADS", 2, True),
    (4, "DTORCH_THREADS", 2, True),
])
def test_oversubscription(threads, source, number, warned):
    workers = [PLACE._replace(threads=threads, source=source)] * number
    other_node = [worker._replace(node=9, threads=1) for worker in workers]
    text = oversubscription(other_node + workers)
    assert (text is not None) is warned
    if warned:
        assert "2 workers on host n1, 4 threads each" in text
        assert f"set {source}=2, or unset it" in text


def test_cpus_of_their_own_are_not_shared():
    workers = [PLACE._replace(cpus=frozenset({cpu, cpu + 1}), source="DTORCH_THREADS")
               for cpu in (0, 2)]
    assert oversubscription(workers) is None
