import os
import socket
import threading
import time

import pytest

from dtorch_mpi.watching import death_hub
from dtorch_mpi.watching.death_report import Death, Voice


@pytest.fixture
def listener():
    fd, port = death_hub.open_listener()
    yield fd, f"127.0.0.1:{port}"


def death(rank, own=False, age=0.0):
    return Death(rank, time.monotonic() - age, own, f"text of {rank}")


def send(address, one, token="secret"):
    return death_hub.send(address, token, time.monotonic() - one.when, one, f"block of {one.rank}")


def told_by_hub(listener, own_reports, others, num_nodes):
    """What the hub tells, with reports of its node, and of others sent meanwhile."""
    fd, address = listener
    hub = death_hub.Hub(fd, "secret", num_nodes)
    read_end, write_end = os.pipe()
    voice = Voice((-1, write_end), "/nowhere", hub)
    for one in own_reports:
        voice.report(one, lambda is_known: "block of the hub's own node")
    taken = []
    senders = [threading.Thread(target=lambda one=one: taken.append(send(address, one)))
               for one in others]  # fmt: skip
    for sender in senders:
        sender.start()
    began = time.monotonic()
    voice.tell_first()
    for sender in senders:
        sender.join()
    with os.fdopen(read_end) as file:  # its end comes, for the hub let go of it
        return file.read(), all(taken), time.monotonic() - began


@pytest.mark.timeout(30)
def test_the_earliest_is_told_once_all_nodes_have_reported(listener):
    text, taken, seconds = told_by_hub(
        listener, [death(0)], [death(4, age=0.3), death(6, age=0.2)], 3)
    assert (text, taken) == ("block of 4", True)
    assert seconds < death_hub.SETTLE


@pytest.mark.timeout(30)
def test_a_cause_is_told_though_a_node_is_silent(listener, monkeypatch):
    monkeypatch.setattr(death_hub, "LINGER", 0.3)
    text, _, seconds = told_by_hub(listener, [death(0)], [death(4, own=True)], 3)
    assert text == "block of 4"
    assert seconds < death_hub.SETTLE


@pytest.mark.timeout(30)
def test_others_messages_are_not_taken(listener):
    fd, address = listener
    hub = death_hub.Hub(fd, "secret", 2)
    outcome = []
    threads = [
        threading.Thread(target=lambda: outcome.append(send(address, death(3), token="guess"))),
        threading.Thread(target=lambda: socket.create_connection(
            address.split(":"), timeout=5).sendall(b"GET / HTTP/1.0\r\n\0")),
    ]  # fmt: skip
    for thread in threads:
        thread.start()
        hub.take()
        thread.join()
    assert outcome == [False] and hub.reports == []


@pytest.mark.timeout(30)
def test_who_finds_no_hub_tells(tmp_path):
    fd, port = death_hub.open_listener()
    os.close(fd)
    read_end, write_end = os.pipe()
    voice = Voice((write_end,), tmp_path / "log", hub_address=f"127.0.0.1:{port}", token="secret")
    voice.report(death(3), lambda is_known: f"known: {is_known}\n")
    voice.close()
    with os.fdopen(read_end) as file:
        assert file.read() == "known: False\n"
