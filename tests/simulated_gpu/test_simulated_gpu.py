"""A simulated GPU finds what streams do to each other's memory, and lets copies arrive late."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

UNREAD = 0xAB


def test_a_read_before_the_write_is_found(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    gpu.synchronize()
    a.add_(1)
    with gpu.stream(side):
        a.sum()
    (found,) = gpu.violations()
    assert "aten::sum" in found and "reads Float [3] (12 bytes)" in found, found
    assert "aten::add.out" in found and "cuda:0 stream 0 wrote" in found, found


def test_a_write_before_the_read_is_found(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    gpu.synchronize()
    a.sum()
    with gpu.stream(side):
        a.add_(1)
    (found,) = gpu.violations()
    assert "aten::add.out" in found and "writes Float [3]" in found and "reads" in found, found


def test_a_write_before_the_write_is_found(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    gpu.synchronize()
    a[:1].zero_()
    with gpu.stream(side):
        a[2:].fill_(2)
    (found,) = gpu.violations()
    assert "aten::fill_" in found and "wrote" in found, found


def test_a_first_use_of_recycled_memory_is_found(gpu):
    side = gpu.new_stream()
    gpu.tensor(torch.ones(3)).add_(1)
    a = torch.empty(3, device="cuda")
    with gpu.stream(side):
        a.fill_(1)
    (found,) = gpu.violations()
    assert "may hand out again" in found, found


def test_memory_freed_under_another_stream_is_found(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    gpu.synchronize()
    with gpu.stream(side):
        a.sum()
    del a
    (found,) = gpu.violations()
    assert found.startswith("freeing Float [3]") and "was not recorded" in found, found


def test_events_order_streams(gpu):
    a, side = torch.empty(3, device="cuda"), gpu.new_stream()
    for _ in range(3):
        a.add_(1)
        side.wait_event(gpu.current_stream().record_event())
        with gpu.stream(side):
            a.mul_(2)
        gpu.current_stream().wait_event(side.record_event())
    del a
    assert gpu.violations() == []
    assert gpu.counts()["events"] == 6


def test_an_event_holds_what_was_before_it(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    event = gpu.current_stream().record_event()
    a.add_(1)
    side.wait_event(event)
    with gpu.stream(side):
        a.sum()
    assert len(gpu.violations()) == 1
    gpu.synchronize()
    del a
    assert len(gpu.violations()) == 1


def test_recorded_memory_may_be_freed(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream()
    side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        a.sum()
    a.record_stream(side)
    del a
    assert gpu.violations() == []
    assert gpu.counts()["recorded_streams"] == 1


def test_a_thread_comes_after_what_it_waited_for(gpu):
    a = gpu.tensor(torch.ones(3)).add_(1)
    event = gpu.current_stream().record_event()
    thread = threading.Thread(target=event.synchronize)
    thread.start()
    thread.join()
    with gpu.stream(gpu.new_stream()):
        a.sum()
    assert len(gpu.violations()) == 1
    gpu.set_host_order("process")
    with gpu.stream(gpu.new_stream()):
        a.sum()
    gpu.set_host_order("thread")
    assert len(gpu.violations()) == 1
    gpu.synchronize()
    with gpu.stream(gpu.new_stream()):
        a.sum()
    gpu.synchronize()
    del a
    assert len(gpu.violations()) == 1
    assert list(gpu.counts()["event_synchronizations"].values()) == [1]


def test_a_copy_to_pinned_memory_arrives_late(gpu):
    a, host = gpu.tensor(torch.ones(3)), gpu.pinned([3])
    host.copy_(a, non_blocking=True)
    event = gpu.current_stream().record_event()
    assert set(host.view(torch.uint8).tolist()) == {UNREAD}
    assert [event.query() for _ in range(3)] == [False, False, True]
    assert host.tolist() == [1, 1, 1]
    gpu.set_event_delay(0)
    late = a.to("cpu", non_blocking=True)
    assert gpu.is_pinned(late) and set(late.view(torch.uint8).tolist()) == {UNREAD}
    assert gpu.current_stream().query()
    assert late.tolist() == [1, 1, 1]
    host.copy_(a * 2)
    assert host.tolist() == [2, 2, 2]
    assert gpu.counts()["blocking_copies"] == 2


def test_copies_wait_for_their_own_stream_only(gpu):
    a, host, side = gpu.tensor(torch.ones(3)), gpu.pinned([3]), gpu.new_stream()
    side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        host.copy_(a, non_blocking=True)
    gpu.synchronize(gpu.current_stream())
    assert set(host.view(torch.uint8).tolist()) == {UNREAD}
    gpu.synchronize(side)
    assert host.tolist() == [1, 1, 1]
    assert gpu.violations() == []


def test_pinned_memory_written_under_a_copy_is_found(gpu):
    host = gpu.pinned([3]).fill_(1)
    a = host.to("cuda", non_blocking=True)
    host.fill_(2)
    gpu.synchronize()
    (found,) = gpu.violations()
    assert "the host wrote pinned Float [3]" in found, found
    assert a.tolist() == [1, 1, 1]


def test_pinned_memory_is_handed_out_again_when_its_copies_are_past(gpu):
    host = gpu.pinned([1000]).fill_(1)
    address = host.data_ptr()
    a = host.to("cuda", non_blocking=True)
    del host
    other = gpu.pinned([1000])
    assert other.data_ptr() != address
    gpu.synchronize()
    assert gpu.pinned([1000]).data_ptr() == address
    assert gpu.violations() == []
    del a


def test_pinned_memory_freed_under_a_copy_is_found(gpu):
    a, host = gpu.tensor(torch.ones(2)), gpu.pinned([3])
    # The allocator knows this part neither by its address nor by its owner.
    part = torch.from_numpy(host.numpy()[1:])
    part.copy_(a, non_blocking=True)
    del part, host
    (found,) = gpu.violations()
    assert "bytes of pinned memory" in found and "record_event was not called" in found, found
    gpu.synchronize()


def test_copies_between_devices_wait_for_both(gpu):
    a, side = gpu.tensor(torch.ones(3)), gpu.new_stream(1)
    gpu.synchronize()
    with gpu.stream(side):
        b = a.add_(1).to("cuda:1").mul_(2)
        a.add_(1)
        assert b.device.index == 1 and b.tolist() == [4, 4, 4]
    assert gpu.violations() == []
    gpu.synchronize(1)


def test_reading_values_waits(gpu):
    a = gpu.tensor(torch.randn(4))
    gpu.reset()
    a.sum().item()
    a.nonzero()
    a[a > 0]
    assert sum(gpu.counts()["stream_synchronizations"].values()) == 3
    gpu.reset()
    (a + 1).add_(2)
    assert gpu.counts()["stream_synchronizations"] == {}
    assert sum(gpu.counts()["operators"].values()) == 2


def test_live_bytes(gpu):
    before = gpu.live_bytes(1)
    a = gpu.tensor(torch.zeros(1000), 1)
    assert gpu.live_bytes(1) - before == 4000
    del a
    assert gpu.live_bytes(1) == before


LATE = """
import torch
import simulated_gpu as gpu

gpu.load(devices=1)
a = gpu.tensor(torch.ones(3)).add_(1)
with gpu.stream(gpu.new_stream()):
    a.sum()
"""


def test_violations_are_reported_to_a_file(gpu, tmp_path):
    report = tmp_path / "violations"
    environment = os.environ | {"SIMULATED_GPU_REPORT": str(report),
                                "PYTHONPATH": str(Path(__file__).parents[1])}  # fmt: skip
    subprocess.run([sys.executable, "-c", LATE], env=environment, check=True)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert "aten::sum" in lines[0]["violation"] and "wrote" in lines[0]["violation"], lines


def test_it_is_loaded_once(gpu):
    assert gpu.load(devices=2) is gpu
    with pytest.raises(ValueError, match="got 3 devices, expected the 2 that are loaded"):
        gpu.load(devices=3)
