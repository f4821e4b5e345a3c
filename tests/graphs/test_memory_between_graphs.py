"""What graphs read and write of each other's, and what a failure leaves to others."""

import time

import pytest
import torch
from worker_kernels import fail_on, slow

import dtorch_mpi as dt


@pytest.mark.parametrize("slow_is_main", [False, True])
def test_a_read_waits_for_what_another_graph_writes(slow_is_main):
    with dt.Graph():
        x = torch.zeros(2, device="dtorch")
    y = torch.zeros(2, device="dtorch")
    other = dt.Graph()
    for _ in range(2):
        if slow_is_main:
            y.add_(slow(0.1))
            with other:
                z = y + x
        else:
            with other:
                y.add_(slow(0.1))
            z = y + x
    assert z.cpu().tolist() == [6.0, 6.0]


@pytest.mark.parametrize("slow_is_main", [False, True])
def test_a_write_waits_for_what_another_graph_reads(slow_is_main):
    other = dt.Graph()
    x = torch.ones(2, device="dtorch")
    with other:
        x + 1  # it knows x
    if slow_is_main:
        y = slow(0.2) * x
        with other:
            x.zero_()
    else:
        with other:
            y = slow(0.2) * x
        x.zero_()
    assert y.cpu().tolist() == [3.0, 3.0] and x.cpu().tolist() == [0.0, 0.0]


def test_views_share_memory_across_graphs():
    x = torch.zeros(4, 4, device="dtorch")
    before = x[1]  # a view made before any graph knows x
    other, third = dt.Graph(), dt.Graph()
    with other:
        row = x[2]
        slow(0.1)
        row.add_(2)
        x.t()[0].add_(slow(0.1)[0])
    with third:
        before.mul_(2).add_(1)
        total = x.sum()
    expected = torch.zeros(4, 4)
    expected[2] += 2
    expected[:, 0] += 3
    expected[1] = expected[1] * 2 + 1
    assert torch.equal(x.cpu(), expected)
    assert total.item() == expected.sum().item()
    assert torch.equal(row.cpu(), expected[2]) and torch.equal(before.cpu(), expected[1])


def test_tensors_that_die_while_another_graph_uses_them():
    other = dt.Graph()
    found = []
    for step in range(50):
        x = torch.full((100,), float(step), device="dtorch")
        with other:
            if step % 10 == 0:
                slow(0.02)
            y = x * 2
        del x
        torch.zeros(100, device="dtorch").add_(7)  # takes its memory, if that was free
        found.append(y)
    assert [y[5].item() for y in found] == [2.0 * step for step in range(50)]


def test_a_failure_in_a_graph():
    graph = dt.Graph()
    with graph:
        good = torch.ones(2, device="dtorch")
        bad = torch.zeros(2, 2, device="dtorch").inverse()
        worse = bad + 1
    later = worse * 2
    with pytest.raises(dt.WorkerError, match="singular") as caught:
        later.cpu()
    assert "test_a_failure_in_a_graph" in caught.value.site
    assert good.cpu().tolist() == [1.0, 1.0]
    with graph:
        fail_on(0)
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        graph.sync()
    with graph:
        fail_on(0)
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        dt.sync()
    dt.sync()
    graph.sync()


@pytest.mark.parametrize("at_once", [True, False])
def test_memory_that_a_failure_in_another_graph_left_without_a_value(at_once):
    graph = dt.Graph()
    x = torch.zeros(dt.num_workers(), 2, device="dtorch")

    def elsewhere(write):
        with graph:
            write()
        if not at_once:  # it has been executed, and known to be, before this graph reads
            time.sleep(0.1)

    elsewhere(lambda: x.add_(fail_on(0)))
    y = x + 1
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        y.cpu()
    elsewhere(lambda: x.fill_(4))
    assert (x + 1).cpu().unique().tolist() == [5.0]


def test_memory_that_a_graph_left_without_a_value_and_ended():
    x = torch.zeros(dt.num_workers(), 2, device="dtorch")
    graph = dt.Graph()
    with graph:
        x.add_(fail_on(0))
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        graph.close()
    assert graph.number not in dt.runtime.current().engines
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        (x + 1).cpu()
    x.zero_()
    assert (x + 1).cpu().unique().tolist() == [1.0]


def test_a_failure_in_another_graph_that_is_long_over():
    graph = dt.Graph()
    x = torch.zeros(dt.num_workers(), 2, device="dtorch")
    with graph:
        x + 1  # it knows x
        x.add_(fail_on(0))
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        graph.sync()
    time.sleep(0.1)
    y = x + 1  # need not wait
    with pytest.raises(dt.WorkerError, match="was told to fail"):
        y.cpu()


@pytest.mark.parametrize("is_read_between", [False, True])
def test_a_value_that_another_graph_gives_back(is_read_between):
    graph, other = dt.Graph(), dt.Graph()
    with graph:
        x = torch.ones(dt.num_workers(), 2, device="dtorch")
        x.copy_(fail_on(0))
    with other:
        y = x * 2
        with pytest.raises(dt.WorkerError, match="was told to fail"):
            y.cpu()
        x.fill_(4)
        if is_read_between:
            assert x.sum().item() == 8 * dt.num_workers()
    with graph:
        assert (x + 1).cpu().unique().tolist() == [5.0]
    assert x.cpu().unique().tolist() == [4.0]
