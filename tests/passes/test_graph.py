"""The graph type, a pass of one's own, and windows that are left between rewritten records."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, rewritten, settle

import dtorch_mpi as dt
from dtorch_mpi import passes
from dtorch_mpi.passes.graph import Graph, Node


def chain(length):
    return [Node("operator", "aten::relu", [], record=i) for i in range(length)]


def test_an_unchanged_graph_has_no_regions():
    assert Graph(0, chain(5), []).regions() == []


def test_regions_are_as_small_as_they_can_be():
    nodes = chain(8)
    graph = Graph(0, list(nodes), [])
    graph.remove(nodes[1], nodes[3])  # together: 1 to 4
    graph.replace(nodes[6], Node("operator", "aten::relu_", [], stands_for=(nodes[6],)))
    regions = graph.regions()
    assert [(first, last) for first, last, _ in regions] == [(1, 4), (6, 7)]
    assert [node.record for node in regions[0][2]] == [2]
    assert [node.name for node in regions[1][2]] == ["aten::relu_"]


def test_nodes_that_change_places():
    nodes = chain(6)
    graph = Graph(0, list(nodes), [])
    graph.move_before(nodes[4], nodes[2])
    [(first, last, part)] = graph.regions()
    assert (first, last, [node.record for node in part]) == (2, 5, [4, 2, 3])


@pytest.fixture
def own_pass():
    before = dict(passes._registered)
    yield
    passes._registered.clear()
    passes._registered.update(before)


def test_a_pass_of_ones_own(own_pass):
    seen = []

    @dt.graph_pass
    def doubled(graph):
        for node in list(graph.nodes):
            if node.name == "aten::sin":
                seen.append(node.outputs[0].describe())
                made = Node("operator", "aten::cos", node.arguments, outputs=node.outputs,
                            site=node.site, stands_for=(node,))  # fmt: skip
                graph.replace(node, made)

    x = torch.zeros(3, 2, device="dtorch")
    results = []
    for step in range(TIMES):
        if step == REWRITTEN:
            settle()
        y = x
        for _ in range(5):
            y = y + x.sin()
        results.append(y.sum().item())
    assert results[0] == 0 and results[-1] == 30
    assert "float32[3, 2]" in seen[0]


def test_a_name_that_is_taken():
    with pytest.raises(ValueError, match="registered already"):
        dt.graph_pass(passes.registered()["dead_nodes"])


def test_a_pass_that_fails_leaves_the_window_as_it_was(own_pass):
    @dt.graph_pass
    def broken(graph):
        raise RuntimeError("no")

    def program(device, step):
        x = torch.ones(3, device=device)
        for _ in range(6):
            x = torch.relu(x + step)
        return x

    with (
        pytest.warns(RuntimeWarning, match="runs as it is"),
        pytest.raises(ValueError, match="empty"),  # no window was rewritten
    ):
        rewritten(program)


def test_passes_are_chosen_by_name():
    assert list(passes.chosen("dead_nodes")) == ["dead_nodes"]
    assert passes.chosen("none") == {}
    with pytest.raises(ValueError, match="expected all, none, or some of"):
        passes.chosen("dead_node")


def test_text_and_picture():
    def program(device, step):
        x = torch.ones(3, device=device)
        for _ in range(6):
            x = torch.relu(x + step)
        return x

    stages, _ = rewritten(program)
    assert list(stages) == ["program", *passes.registered()]
    assert "= aten::relu(%" in stages["program"]
    assert dt.debug.graph(dot=True)[0]["program"].startswith("digraph window {")


@pytest.mark.parametrize("leave_at", range(8))
def test_leaving_anywhere(leave_at):
    """The program goes another way after each of a window's rewritten records."""

    def program(device, step):
        x = torch.full((4,), 0.5 + step, device=device)
        kept = []
        for i in range(8):
            unread = x * 3
            x = torch.tanh(torch.relu(x + i))
            y = x.sin() + x.sin()
            if step in (5, 8) and i == leave_at:
                y = y.exp() + unread
            del unread
            x = y.cos()
            kept.append(x.sum())
        return torch.stack(kept)

    for step in range(10):
        if step in (4, 7):
            settle()
        found, expected = program("dtorch", step).cpu(), program("cpu", step)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
