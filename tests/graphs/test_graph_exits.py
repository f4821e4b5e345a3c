"""How a job ends while graphs are at work."""

import pytest
from launching import run_job

START = "import torch, dtorch_mpi as dt\nfrom worker_kernels import die, slow\ndt.init()\n"
GRAPH = "graph = dt.Graph()\nwith graph:\n    x = torch.ones(3, device='dtorch') * 2\n"


def run(tmp_path, body, launcher):
    script = tmp_path / "script.py"
    script.write_text(START + GRAPH + body)
    return run_job(script, launcher=launcher, workers=2, limit=60)


@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_graphs_that_nobody_closes(tmp_path, launcher):
    ended = run(tmp_path, "    y = slow(0.3)\nprint((x + y.sum()).cpu().tolist())\n", launcher)
    assert (ended.code, ended.out, ended.err) == (0, "[8.0, 8.0, 8.0]\n", "")


@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_an_unread_failure(tmp_path, launcher):
    ended = run(tmp_path, "    torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\n", launcher)
    assert ended.code != 0
    assert "singular" in ended.err and "script.py:7 in <module>" in ended.err


@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_an_exception_while_a_graph_is_busy(tmp_path, launcher):
    ended = run(tmp_path, "    y = slow(1)\nraise ValueError('the user is wrong')\n", launcher)
    assert ended.code != 0 and ended.seconds < 40
    assert "the user is wrong" in ended.err


def test_a_worker_that_dies_in_a_graph(tmp_path):
    body = "    x = torch.tanh(x)\n    x.cpu()\n    die(1, 9)\ndt.sync()\n"
    ended = run(tmp_path, body, "mpirun")
    assert ended.code != 0 and ended.seconds < 40
    assert "SIGKILL" in ended.err and "aten::tanh" in ended.err


def test_shutdown_with_open_graphs_and_another_start(tmp_path):
    body = (
        "dt.shutdown()\n"
        "try:\n"
        "    x + 1\n"
        "except RuntimeError as error:\n"
        "    print('shut down' in str(error))\n"
        "dt.init()\n"
        "with dt.Graph() as other:\n"
        "    y = torch.ones(2, device='dtorch') + 1\n"
        "print(y.cpu().tolist())\n"
        "try:\n"
        "    graph.sync()\n"
        "except RuntimeError as error:\n"
        "    print('another' in str(error))\n"
    )
    ended = run(tmp_path, body, "thread")
    assert (ended.code, ended.out, ended.err) == (0, "True\n[2.0, 2.0]\nTrue\n", "")
