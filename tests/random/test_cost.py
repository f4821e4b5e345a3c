"""A worker that holds a part of a random tensor makes that part only."""

from pathlib import Path

from launching import run_job


def test_a_quarter_takes_a_third_at_most():
    """Of the time and of the memory that the whole takes, per worker."""
    ended = run_job(Path(__file__).with_name("parts_and_wholes.py"), launcher="mpirun", workers=4,
                    limit=110)
    assert ended.code == 0, ended.err
    (time_ratio, memory_ratio) = map(float, ended.out.split())
    assert memory_ratio < 1 / 3
    assert time_ratio < 1 / 3
