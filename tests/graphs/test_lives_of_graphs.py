"""Graphs that begin and end, one after the other and beside others."""

import copy
import pickle
import threading
import time

import pytest
import torch
from worker_kernels import slow

import dtorch_mpi as dt


def successor_of(graph):
    """Another graph that has got the number of one that has ended."""
    made = [dt.Graph()]
    while made[-1].number != graph.number:
        made.append(dt.Graph())
    return made[-1]


def test_a_wait_for_a_graph_whose_number_another_has_got():
    late, graph = dt.Graph(), dt.Graph()
    with graph:
        x = torch.ones(2, device="dtorch")
        for _ in range(100):
            x = x + 1
    with late:
        x + 1  # it knows x
        slow(0.5)
    with graph:
        slow(0.1)
        x.add_(1)
    with late:
        y = x * 2  # waits for it, and looks when it has ended
    del x
    graph.close()
    successor = successor_of(graph)
    future = y.to_torch_async()
    deadline = time.monotonic() + 10
    while not future.is_ready() and time.monotonic() < deadline:
        time.sleep(0.01)
    with successor:  # a wait that counts its records must not hang the tests
        for _ in range(200):
            torch.ones(2, device="dtorch")
    assert time.monotonic() < deadline
    assert future.get().tolist() == [204.0, 204.0]


def test_a_graph_that_has_its_number_of_another_begins_anew():
    other, graph = dt.Graph(), dt.Graph()
    x = torch.ones(2, device="dtorch")
    with other:
        x + 1  # it knows x
    with graph:
        y = torch.ones(2, device="dtorch")
        for _ in range(100):
            y = y + 1
    del y
    graph.close()
    slow(0.3)  # workers begin the next graph behind it
    successor = successor_of(graph)
    with successor:
        x.add_(1)
    with other:
        z = x * 2
    assert z.cpu().tolist() == [4.0, 4.0]


def test_closed_graphs():
    graph = dt.Graph()
    with graph:
        pass
    graph.close()
    graph.close()
    with pytest.raises(RuntimeError, match="this graph is closed"), graph:
        pass
    with dt.Graph() as other:
        other.close()
        with pytest.raises(RuntimeError, match="leave its `with` block"):
            torch.ones(2, device="dtorch")
    with pytest.raises(TypeError, match="copied or pickled"):
        copy.deepcopy(graph)
    with pytest.raises(TypeError, match="copied or pickled"):
        pickle.dumps(graph)


def test_many_graphs_one_after_the_other():
    w = torch.ones(2, 2, device="dtorch")
    for i in range(70):
        with dt.Graph() as graph:
            y = (w @ w).sum() + i
        assert y.item() == 8 + i
        del y
        graph.close()
    assert len(dt.runtime.current().engines) <= 20


def test_nested_graphs():
    first, second = dt.Graph(), dt.Graph()
    with first:
        a = torch.ones(2, device="dtorch")
        with second:
            b = a + 1
            with first:
                c = b + a
        d = c + b
    assert (d + a).cpu().tolist() == [6.0, 6.0]


def test_what_is_asked_of_all_graphs_while_another_thread_opens_and_closes_some():
    over = threading.Event()
    failures = []

    def work():
        try:
            while not over.is_set():
                with dt.Graph() as graph:
                    torch.ones(2, device="dtorch")
                graph.close()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            dt.sync()
            dt.stats()
            dt.debug.counters()
            with dt.profile():
                assert (torch.ones(2, device="dtorch") + 1).cpu().tolist() == [2.0, 2.0]
    finally:
        over.set()
        thread.join()
    assert not failures
