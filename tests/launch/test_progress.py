"""dt.progress as a log and as a terminal get it."""

import io

import pytest

from dtorch_mpi import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("options, last", [
    ({"total": 3, "desc": "training", "unit": "step"}, "training: 3/3 step, 00:00, 00:00 left, "),
    ({"total": 3}, "3/3 it, 00:00, 00:00 left, "),
    ({"unit": "file"}, "3 file, 00:00, "),
])
def test_lines_in_a_log(options, last):
    file = io.StringIO()
    with progress(file=file, every=60, **options) as bar:
        for number in range(3):
            bar.set_postfix_str(f"loss {number}", refresh=False)
            bar.update()
    lines = file.getvalue().splitlines(keepends=True)
    assert len(lines) == 2  # at the start and at the end, no minute between
    assert lines[1].startswith(last)
    assert lines[1].endswith("/s, loss 2\n")
    assert "\r" not in file.getvalue()


def test_a_line_each_time_when_asked():
    file = io.StringIO()
    assert list(progress(range(3), file=file, every=0)) == [0, 1, 2]
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == [
        "0/3 it", "1/3 it", "2/3 it", "3/3 it"]


@pytest.mark.parametrize("job", [None, "17"])
def test_a_bar_on_a_terminal_but_not_in_a_slurm_job(job, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    file = Terminal()
    list(progress(range(3), file=file))
    assert ("\r" in file.getvalue()) is (job is None)
