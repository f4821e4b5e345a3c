"""What a profile of a block holds, and how it ends."""

import json
import threading

import pytest
import torch
import worker_kernels  # noqa: F401
from traces import (
    CLIENT,
    CONTROLLER,
    FIRST_WORKER,
    check_nesting,
    check_order,
    check_structure,
    names_of,
    of,
)

import dtorch_mpi as dt
from dtorch_mpi import _core
from dtorch_mpi.kernels.timeline import on_all_workers


def noted_by_workers():
    """Events that each worker keeps or has lost."""
    rows = on_all_workers("timeline.stop", [], dt.num_workers(), 3).to_torch().tolist()
    return [kept + lost for kept, lost, _ in rows]


def num_operators():
    dt.sync()
    return [worker.num_operators for worker in dt.runtime.current().hosted_workers]


def test_operators_are_there_once():
    a = torch.ones(4, 6, device="dtorch")
    with dt.profile() as profile:
        before = num_operators()
        b = a.t() @ a
        c = torch.cat([b, b]).exp()
        torch.nonzero(c)
        a.add_(1)
        after = num_operators()
    events = profile.events()
    check_structure(events)
    check_nesting(events)
    ran = of(events, FIRST_WORKER, "operator")
    names = names_of(ran)
    assert names == ["aten::t", "aten::mm", "aten::cat", "aten::exp", "aten::nonzero",
                     "aten::add_.Tensor"]  # fmt: skip
    assert [len(ran)] == [b - a for a, b in zip(before, after, strict=True)] == profile.operators
    assert all("test_profile.py:" in event["args"]["site"] for event in ran)
    assert ran[1]["args"]["inputs"] == ["float32[6, 4]", "float32[4, 6]"]
    assert ran[1]["args"]["outputs"] == ["float32[6, 6]"]
    assert names_of(of(events, CLIENT, "operator")) == names
    assert check_order(events, [0]) >= len(ran)


def test_other_records():
    with dt.profile() as profile:
        x = torch.ones(3, 5).to("dtorch")
        (x + 1).to_torch()
        dt.kernels.call("dtorch.empty", [], sizes=[2], dtype=torch.float32)
        dt.sync()
    events = of(profile.events(), FIRST_WORKER)
    (upload,) = [event for event in events if event["cat"] == "upload"]
    assert upload["args"]["tensor"] == "float32[3, 5]"
    names = names_of(events)
    assert "read value" in names and "sync" in names and "kernel dtorch.empty" in names
    assert not any("free" in name for name in names)


def test_the_file_is_the_events(tmp_path):
    with dt.profile(tmp_path / "a.json") as profile:
        torch.ones(2, device="dtorch") + 1
    profile.write(tmp_path / "b.json")
    written = (tmp_path / "a.json").read_text()
    assert written == (tmp_path / "b.json").read_text()
    assert json.loads(written)["traceEvents"] == profile.events()


def test_windows_and_plans():
    def step(times):
        x = torch.full((4, 4), 0.5, device="dtorch")
        for _ in range(times):
            x = torch.sigmoid(x) * 2
        return x.to_torch()

    with dt.profile() as profile:
        before = dt.stats()
        for _ in range(5):
            step(10)
        step(7)
        after = dt.stats()
    events = profile.events()
    check_nesting(events)
    growth = {name: after[name] - before[name] for name in ("replays", "departures", "plans")}
    assert growth["replays"] >= 2 and growth["departures"] >= 1 and growth["plans"] >= 1
    # stats() itself issues records, after the counts are taken.
    assert len(of(events, CONTROLLER, "replay")) - growth["replays"] in (0, 1)
    assert len(of(events, CONTROLLER, "departure")) >= growth["departures"]
    assert len(of(events, CONTROLLER, "plan")) >= growth["plans"]
    plan = of(events, CONTROLLER, "replay")[0]["args"]["plan"]
    assert f"replay of plan {plan}" in names_of(of(events, FIRST_WORKER, "replay"))
    sent = sum(event["args"]["bytes"] for event in of(events, CONTROLLER, "batch"))
    assert sent >= after["bytes_sent"] - before["bytes_sent"]
    batches = of(events, CONTROLLER, "batch")
    issued = after["records"] - before["records"]
    assert sum(event["args"]["records"] for event in batches) >= issued


def test_events_that_find_no_room():
    a = torch.ones(2, device="dtorch")
    kept = 16
    with dt.profile(max_events=kept) as profile:
        for _ in range(100):
            a = a + 1
    assert profile.lost["client"] == 100 - kept
    assert profile.lost["worker 0"] >= 100 - kept
    events = profile.events()
    check_structure(events)
    records = [event["args"]["record"] for event in of(events, CLIENT, "operator")]
    assert len(records) == kept
    ran = [event["args"]["record"] for event in of(events, FIRST_WORKER, "operator")]
    assert len(ran) <= kept and ran[-1] == records[-1], "the latest stay"
    assert profile.operators == [100]


def test_nothing_is_noted_outside(tmp_path):
    a = torch.ones(2, device="dtorch")
    with dt.profile(tmp_path / "trace.json"):
        a + 1
    for _ in range(20):
        a + 1
    assert _core.take_timeline() == (b"", 0)
    assert noted_by_workers() == [0]
    assert dt.runtime.current().main.controller.take_timeline() == (b"", 0)
    with dt.profile() as profile:
        a * 2
    assert names_of(of(profile.events(), FIRST_WORKER, "operator")) == ["aten::mul.Tensor"]


def test_one_at_a_time():
    with dt.profile() as outer:
        with pytest.raises(ValueError, match="end that `with dt.profile"), dt.profile():
            pass
        found = []

        def other():
            with pytest.raises(ValueError), dt.profile():
                pass
            found.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        torch.ones(2, device="dtorch")
    assert found == [True] and of(outer.events(), FIRST_WORKER, "operator")
    with outer:  # again
        torch.zeros(3, device="dtorch").exp()
    assert "aten::exp" in [event["name"] for event in of(outer.events(), FIRST_WORKER)]


def test_client_threads_have_rows():
    a = torch.ones(2, device="dtorch")
    with dt.profile() as profile:
        a + 1
        thread = threading.Thread(target=lambda: a * 2)
        thread.start()
        thread.join()
    rows = {event["name"]: event["tid"] for event in of(profile.events(), CLIENT, "operator")}
    assert rows["aten::add.Tensor"] != rows["aten::mul.Tensor"]
    check_structure(profile.events())


def test_an_error_in_the_block(tmp_path):
    with pytest.raises(KeyError), dt.profile(tmp_path / "trace.json") as profile:
        torch.ones(2, device="dtorch").exp()
        raise KeyError("the program's own")
    assert "aten::exp" in (tmp_path / "trace.json").read_text()
    assert "aten::exp" in names_of(profile.events())


def test_an_operator_that_fails(tmp_path):
    bad = -torch.eye(3, device="dtorch")
    dt.sync()
    profile = dt.profile(tmp_path / "trace.json")
    with pytest.raises(dt.WorkerError, match="cholesky"), profile:
        torch.linalg.cholesky(bad)
    failed = [event for event in profile.events() if event.get("args", {}).get("failed")]
    assert len(failed) == 1
    ran = [event for event in of(profile.events(), FIRST_WORKER, "operator") if event not in failed]
    assert [len(ran)] == profile.operators
    dt.sync()  # told, once


def test_an_operator_that_fails_beside_an_error():
    bad = -torch.eye(3, device="dtorch")
    dt.sync()
    with pytest.raises(KeyError) as raised, dt.profile():
        torch.linalg.cholesky(bad)
        raise KeyError("the program's own")
    assert "cholesky" in raised.value.__notes__[0]


def test_shut_down_in_the_block():
    with pytest.raises(RuntimeError, match="end the block before"), dt.profile():
        dt.shutdown()
    with dt.profile():
        torch.ones(2, device="dtorch")


def test_what_cannot_be(tmp_path):
    with pytest.raises(TypeError):
        dt.profile(3.5)
    with pytest.raises(TypeError, match="expected an int"):
        dt.profile(max_events="many")
    with pytest.raises(ValueError, match="expected 1 to"):
        dt.profile(max_events=0)
    with pytest.raises(ValueError, match="no events yet"):
        dt.profile().events()
    with pytest.raises(OSError), dt.profile(tmp_path / "no such folder" / "trace.json"):
        pass
    with dt.profile():
        pass
