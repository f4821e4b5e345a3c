"""The timeline of a whole job: worker threads and ranks under mpirun."""

import json
from pathlib import Path

import pytest
from launching import run_job
from traces import (
    CLIENT,
    COLLECTIVES,
    CONTROLLER,
    FIRST_WORKER,
    OPERATORS,
    check_nesting,
    check_order,
    check_structure,
    names_of,
    of,
)

PROGRAM = Path(__file__).with_name("profiled_program.py")
STEPS = 9


def line_of(text):
    (number,) = [n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if text in line]
    return f"{PROGRAM.name}:{number} in <module>"


def at_line(events, text):
    line = line_of(text)
    return [event for event in events if event["args"]["site"].endswith(line)]


@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job(launcher, workers, tmp_path):
    ended = run_job(PROGRAM, tmp_path / "trace.json", STEPS, launcher=launcher, workers=workers,
                    limit=110)
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    trace = json.loads((tmp_path / "trace.json").read_text())
    events, about = trace["traceEvents"], trace["otherData"]

    check_structure(events)
    check_nesting(events)
    processes = [event for event in events if event["name"] == "process_name"]
    ranks = [f" (rank {worker + 1})" if launcher == "mpirun" else "" for worker in range(workers)]
    assert {event["pid"]: event["args"]["name"] for event in processes} == {
        CLIENT: "client", CONTROLLER: "controller",
        **{FIRST_WORKER + worker: f"worker {worker}{rank}" for worker, rank in enumerate(ranks)},
    }  # fmt: skip

    # Each operator is there once, on the client's row and on each worker's.
    assert about["lost_events"] == told["lost"] and not any(told["lost"].values())
    issued = of(events, CLIENT, "operator")
    records = [event["args"]["record"] for event in issued]
    assert len(set(records)) == len(records)
    for worker in range(workers):
        ran = of(events, FIRST_WORKER + worker, "operator", OPERATORS)
        assert len(ran) == told["operators"][worker] == about["operators_executed"][worker]
        assert len(ran) == len(records)
        by_record = {event["args"]["record"]: event["args"] for event in issued}
        as_issued = [event for event in ran if "rewritten" not in event["args"]]
        assert len({event["args"]["record"] for event in as_issued}) == len(as_issued)
        for event in as_issued:
            args = event["args"]
            assert args["site"] == by_record[args["record"]]["site"]
            assert args["inputs"] == by_record[args["record"]]["inputs"]
        loop = at_line(ran, "the loop's line")
        assert len(loop) == STEPS * 8
        assert all(event["args"]["inputs"] for event in ran)
        # A pass may have made one that writes in place.
        assert set(names_of(loop)) <= {"aten::sigmoid", "aten::sigmoid_", "aten::add.Tensor",
                                       "aten::add_.Tensor"}  # fmt: skip
        products = at_line(ran, "the product's line")
        assert names_of(products) == ["aten::mm"] * STEPS
        assert products[0]["args"]["inputs"][0].startswith("float32[8, 8]")
        assert len(at_line(ran, "the detour's line")) == 1

        # Replays are marked, by themselves and on what they run.
        own = of(events, FIRST_WORKER + worker)
        replays = of(own, FIRST_WORKER + worker, "replay")
        replayed = [event for event in own if event["args"].get("replayed")]
        # A replay under way when the profile begins is not shown, and what it then runs is.
        shown = [event for event in replayed if event["ts"] >= min(r["ts"] for r in replays)]
        assert sum(event["args"]["records"] for event in replays) >= len(shown) > 0
        assert len(of(replayed, FIRST_WORKER + worker, "operator")) >= (STEPS - 5) * 8

        moves = of(events, FIRST_WORKER + worker, "redistribute")
        assert {event["tid"] for event in moves} <= {COLLECTIVES}
        assert of(events, FIRST_WORKER + worker, tid=COLLECTIVES) == moves
        if workers > 1:
            moved = at_line(moves, "the product's line")
            assert names_of(moved) == ["redistribute [Shard(dim=0)] -> [Shard(dim=1)]"] * STEPS
            assert moved[0]["args"]["tensor"] == "float32[8, 8]"

    # The end of the block issues a few records too.
    assert 0 <= len(of(events, CONTROLLER, "replay")) - told["growth"]["replays"] <= 1
    assert 0 <= len(of(events, CONTROLLER, "departure")) - told["growth"]["departures"] <= 1
    assert told["growth"]["replays"] >= 2 and told["growth"]["departures"] >= 1
    assert of(events, CONTROLLER, "batch") and of(events, CONTROLLER, "plan")

    errors = about["clock_error_us"]
    assert errors == pytest.approx([seconds * 1e6 for seconds in told["errors"]])
    assert len(errors) == workers
    if launcher == "thread":
        assert errors == [0] * workers
    else:
        assert all(0 < error < 1e5 for error in errors)
        # All ranks are on this host, and read the same clock.
        offsets = about["clock_offset_us"]
        assert all(abs(offset) <= error for offset, error in zip(offsets, errors, strict=True))
    assert check_order(events, errors) >= workers * STEPS * 10
