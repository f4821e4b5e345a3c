import ctypes
import os
import subprocess
import sys

import pytest

from dtorch_mpi.watching import flight_record


@pytest.fixture
def writer(writer_library):
    library = ctypes.CDLL(str(writer_library))
    yield library
    library.destroy()


def create(writer, path, rank=2, world=5):
    return writer.create(str(path).encode(), rank, world, b"node7", b"worker")


def test_layouts_agree(writer):
    names = ("header", "site", "entry", "operator", "state", "sequence", "ring_size", "host",
             "cause", "version", "finished", "failed", "told", "activity", "count", "kind",
             "kernel", "offset", "activities")
    values = (ctypes.c_size_t * len(names))()
    writer.layout(values)
    layout = dict(zip(names, values, strict=True))
    header = flight_record.HEADER.format
    assert layout["header"] == flight_record.HEADER.size
    assert layout["site"] == flight_record.SITE.size
    assert layout["entry"] == flight_record.ENTRY.size
    assert layout["operator"] == flight_record.OPERATOR_SIZE
    assert layout["version"] == flight_record.VERSION
    assert flight_record.STATES[layout["finished"]] == "finished"
    assert flight_record.STATES[layout["failed"]] == "failed"
    assert flight_record.STATES[layout["told"]] == "told"
    assert header.startswith("=8s8I6Q4I")
    assert layout["state"] == 8 + 4 * 5
    assert layout["sequence"] == 8 + 4 * 8
    assert layout["offset"] == layout["sequence"] + 5 * 8
    assert layout["activities"] == layout["ring_size"] + 4
    assert layout["activity"] == flight_record.ACTIVITY.size
    assert (layout["count"], layout["kind"], layout["kernel"]) == (0, 8 + 4 * 3, 8 + 4 * 8)
    assert layout["host"] == layout["ring_size"] + 8
    assert layout["cause"] == layout["host"] + 64 + 32


def test_what_is_written_is_read(writer, tmp_path):
    path = tmp_path / "record"
    assert create(writer, path) == 1
    fresh = flight_record.read(path)
    assert (fresh.pid, fresh.rank, fresh.world) == (os.getpid(), 2, 5)
    assert (fresh.host, fresh.role, fresh.state) == ("node7", "worker", "starting")
    assert (fresh.last, fresh.cause, fresh.num_operators) == ([], "", 0)

    writer.define_op(1, b"aten::mm")
    writer.define_op(4095, b"x" * 100)
    writer.define_op(4096, b"lost")
    writer.define_site(5, b"train.py:31")
    writer.set_state(1)
    for op, site in [(1, 5), (4095, 6), (4096, 5), (2, 0xFFFFFFFF)]:
        writer.note(op, site)
    writer.set_cause("größer".encode())
    writer.set_cause(b"a later one")
    record = flight_record.read(path)
    assert (record.state, record.cause) == ("running", "größer")
    assert [str(op) for op in record.last] == [
        "op #2 (record 4)", "op #4096 (record 3), issued at train.py:31",
        "x" * 63 + " (record 2)", "aten::mm (record 1), issued at train.py:31"]


def test_what_a_worker_is_at(writer, tmp_path):
    path = tmp_path / "record"
    create(writer, path)
    writer.define_op(1, b"aten::mm")
    writer.define_site(5, b"train.py:31")
    assert flight_record.read(path).activities == []
    writer.begin(0, 1, 1, 5)
    with open(path, "rb") as file:
        (key, count), = flight_record.counts_of(file.fileno()).items()
        assert (key, count) == ((0, 77), 1)
        writer.wait(0, 1, 5)
        activity, = flight_record.read(path).activities
        assert activity.doing == "operator aten::mm, issued at train.py:31"
        assert activity.wait == "waits for other workers in a collective, issued at train.py:31"
        writer.wait(0, 0, 0)
        writer.begin(0, flight_record.KERNEL, 0, 6)
        writer.begin(3, 10, 9, 5)
        assert flight_record.counts_of(file.fileno()) == {(0, 77): 2, (3, 77): 1}
        kernel, other = flight_record.read(path).activities
        assert (kernel.doing, kernel.wait) == ("kernel my::kernel", "")
        assert other.doing == "a redistribution, issued at train.py:31"
        writer.rest(0)
        assert flight_record.counts_of(file.fileno()) == {(0, 77): None, (3, 77): 1}
        assert flight_record.read(path).activities[0].doing == ""


def test_the_ring_keeps_the_last_64(writer, tmp_path):
    create(writer, tmp_path / "record")
    for number in range(1000):
        writer.note(number, 0)
    record = flight_record.read(tmp_path / "record")
    assert record.num_operators == 1000
    assert [op.sequence for op in record.last] == list(range(1000, 936, -1))
    assert [op.name for op in record.last] == [f"op #{n}" for n in range(999, 935, -1)]


def test_sites_wrap_around_and_keep_their_end(writer, tmp_path):
    create(writer, tmp_path / "record")
    writer.define_site(3, b"old.py:1")
    writer.define_site(8192 + 3, b"/very" * 40 + b"/train.py:12")
    writer.note(0, 3)
    writer.note(0, 8192 + 3)
    newest, oldest = flight_record.read(tmp_path / "record").last
    assert oldest.site == ""
    assert newest.site.startswith("...") and newest.site.endswith("/very/train.py:12")
    assert len(newest.site) == 119


def test_a_long_cause_is_cut(writer, tmp_path):
    create(writer, tmp_path / "record")
    writer.set_cause(b"c" * 5000)
    assert flight_record.read(tmp_path / "record").cause == "c" * 2048


def test_works_without_a_file(writer, tmp_path):
    assert create(writer, tmp_path / "missing" / "record") == 0
    writer.define_op(1, b"aten::mm")
    writer.note(1, 1)
    writer.set_state(4)


def test_an_existing_file_is_not_taken(writer, tmp_path):
    (tmp_path / "record").write_text("mine")
    assert create(writer, tmp_path / "record") == 0
    assert (tmp_path / "record").read_text() == "mine"


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "record"
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(ValueError, match="is not a flight record"):
        flight_record.read(path)
    path.write_bytes(b"DTFLIGHT" + b"\7\0\0\0" + bytes(5000))
    with pytest.raises(ValueError, match="version 7, expected 2"):
        flight_record.read(path)


FORK = """\
import ctypes, os, sys
writer = ctypes.CDLL(sys.argv[1])
assert writer.create(sys.argv[2].encode(), 0, 1, b"h", b"r")
writer.set_state(1)
child = os.fork()
if child == 0:
    writer.note(1, 1); writer.set_state(4); writer.set_cause(b"of the child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.note(2, 2)
os._exit(0)
"""


@pytest.mark.timeout(30)
def test_a_forked_child_does_not_write_into_it(writer_library, tmp_path):
    path = tmp_path / "record"
    subprocess.run([sys.executable, "-c", FORK, writer_library, path], check=True, timeout=20)
    record = flight_record.read(path)
    assert (record.state, record.cause) == ("running", "")
    assert [op.name for op in record.last] == ["op #2"]


@pytest.mark.parametrize("code, number", [
    ("ctypes.string_at(8)", 11), ("os.abort()", 6), ("os.kill(os.getpid(), 7)", 7)])
@pytest.mark.parametrize("faulthandler", ["", "import faulthandler; faulthandler.enable()\n"])
@pytest.mark.timeout(30)
def test_fatal_signals_are_noted_and_passed_on(code, number, faulthandler, writer_library,
                                               tmp_path):
    path = tmp_path / "record"
    program = (f"import ctypes, os\n{faulthandler}w = ctypes.CDLL({str(writer_library)!r})\n"
               f"w.create({str(path).encode()!r}, 0, 1, b'h', b'r')\nw.catch_fatal_signals()\n"
               + code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=20)
    assert done.returncode == -number
    record = flight_record.read(path)
    assert record.signal == number
    assert (record.fault_address == 8) == (number == 11)
    assert bool(faulthandler) == ("Fatal Python error" in done.stderr)
