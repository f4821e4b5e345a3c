"""Graphs captured from a simulated GPU's stream run later, over the memory of their capture."""

import contextlib
import ctypes
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

UNWRITTEN = 0xAB
NOT_PERMITTED = "is not permitted while cuda:0 stream"


def some(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def capture(gpu, pool=None, mode="global", stream=None):
    """The graph of what the block issues on a stream that has waited for all before."""
    graph = gpu.CUDAGraph()
    gpu.synchronize()
    with gpu.stream(stream or gpu.new_stream()):
        graph.capture_begin(pool=pool, capture_error_mode=mode)
        try:
            yield graph
            graph.capture_end()
        except BaseException:
            graph.reset()  # which its traceback would keep
            raise


def content(tensor):
    return set(tensor.cpu().contiguous().view(torch.uint8).flatten().tolist())


PROGRAMS = {
    "add": lambda a, b: a + b,
    "in place": lambda a, b: a.t().add_(b.t(), alpha=2),
    "host values": lambda a, b: (a * torch.tensor(3.0, dtype=torch.float64) + 2,
                                 a.half().sum() * 2.5, (a > b).sum() / 3),
    "linear": lambda a, b: F.linear(a, b, b[:, 0]).relu(),
    "matmul": lambda a, b: (a @ b.t(), torch.bmm(a.expand(2, -1, -1), b.t().expand(2, -1, -1))),
    "attention": lambda a, b: F.scaled_dot_product_attention(
        a.view(1, 2, 2, 8), b.view(1, 2, 2, 8), a.view(1, 2, 2, 8) + b.view(1, 2, 2, 8)),
    "norms": lambda a, b: (F.layer_norm(a, (8,), b[0], b[1]), torch.linalg.vector_norm(a)),
    "cat": lambda a, b: (torch.cat([a, b]), torch.stack([a, b]), [*a.split(2)], b.unbind(1)),
    "index": lambda a, b: (a[(b[0, :2] > 0).long()], a.gather(1, (b > 0).long())),
    "index put": lambda a, b: a.index_put_(((b[0, :2] > 0).long(),), b[0]),
    "reductions": lambda a, b: (a.sum(), a.mean(0), b.amax(1), b.argmax(), a.sort(1), a.var()),
    "where": lambda a, b: (torch.where(a > b, a, 0.0), a.masked_fill(b > 0, 1)),
    "views": lambda a, b: a[1:, ::2].copy_(b[1:, ::2]),
    "views of results": lambda a, b: ((a + b)[1:, ::2], (a * 2).t()),
    "results of results": lambda a, b: ((a + b).t() @ b).relu_().sum(0).add_(1),
    "types": lambda a, b: (a.half(), a.to(torch.bfloat16) + b, a > b, a.long()),
    "factories": lambda a, b: (torch.zeros_like(a), torch.arange(5, device=a.device) + 1,
                               torch.ones(2, device=a.device), a.new_full((2,), 3)),
    "out": lambda a, b: torch.add(a, b, out=torch.empty(0, device=a.device)),
    "foreach": lambda a, b: (torch._foreach_add_([a, b], 1), torch._foreach_mul([a, b], 2)),
    "cross entropy": lambda a, b: F.cross_entropy(a, (b[:, 0] > 0).long()),
    "convolution": lambda a, b: F.conv2d(a[None, None], b[None, None, :2, :2], padding=1),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_values_are_those_of_the_cpu(gpu, program):
    inputs = [gpu.tensor(some(4, 8)), gpu.tensor(some(4, 8, seed=1))]
    captured = [tensor.cpu() for tensor in inputs]
    program(*[tensor.clone() for tensor in inputs])
    with capture(gpu) as graph:
        results = program(*inputs)
    torch.testing.assert_close([tensor.cpu() for tensor in inputs], captured, rtol=0, atol=0)
    for seed in range(3):
        on_cpu = [some(4, 8, seed=2 * seed + i) for i in range(2)]
        for tensor, value in zip(inputs, on_cpu, strict=True):
            tensor.copy_(value)
        graph.replay()
        found = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), results)
        torch.testing.assert_close(found, program(*on_cpu))
        torch.testing.assert_close([tensor.cpu() for tensor in inputs], on_cpu)
    assert gpu.violations() == []


def test_results_are_unwritten_before_a_replay(gpu):
    a = gpu.tensor(torch.ones(2, 3))
    with capture(gpu) as graph:
        made, doubled, empty = a + 1, a.mul_(2), torch.empty(3, device="cuda")
        transposed = made.t() @ made
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (3, 1), torch.float32)
    assert content(made) == content(empty) == content(transposed) == {UNWRITTEN}
    assert doubled is a and a.tolist() == [[1] * 3] * 2
    graph.replay()
    assert made.tolist() == [[2] * 3] * 2 and a.tolist() == [[2] * 3] * 2
    assert transposed.tolist() == [[8] * 3] * 3 and content(empty) == {UNWRITTEN}
    assert gpu.violations() == []


def linear_with_update(weight, bias, inputs):
    hidden = F.linear(inputs, weight, bias).relu()
    weight.sub_(hidden.t() @ inputs, alpha=0.01)
    bias.sub_(hidden.sum(0), alpha=0.01)
    return hidden


def test_updates_add_up_over_replays(gpu):
    on_cpu = [some(3, 4), some(3, seed=1), some(5, 4, seed=2)]
    on_device = [gpu.tensor(tensor) for tensor in on_cpu]
    with capture(gpu) as graph:
        hidden = linear_with_update(*on_device)
    for seed in range(4):
        inputs = some(5, 4, seed=seed)
        on_device[2].copy_(inputs)
        graph.replay()
        expected = linear_with_update(*on_cpu[:2], inputs)
        torch.testing.assert_close(hidden.cpu(), expected)
    torch.testing.assert_close([tensor.cpu() for tensor in on_device[:2]], on_cpu[:2])
    assert gpu.violations() == []


@pytest.mark.parametrize("make", [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True, capturable=True),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
], ids=["sgd", "adamw", "fused adam"])  # fmt: skip
def test_optimizer_steps(gpu, make):
    def step(parameters, inputs):
        (parameters[0] @ inputs + parameters[1]).square().sum().backward()

    on_cpu = [torch.nn.Parameter(some(3, 4)), torch.nn.Parameter(some(3, 2, seed=1))]
    on_device = [torch.nn.Parameter(gpu.tensor(tensor.detach())) for tensor in on_cpu]
    inputs, optimizer = gpu.tensor(some(4, 2)), make(on_device)
    reference = torch.optim.AdamW if isinstance(optimizer, torch.optim.AdamW) else type(optimizer)
    reference = reference(on_cpu, **{name: optimizer.defaults[name] for name in
                                     ("lr", "momentum") if name in optimizer.defaults})  # fmt: skip
    step(on_device, inputs)
    optimizer.step()
    optimizer.zero_grad()
    step(on_cpu, some(4, 2))
    reference.step()
    with capture(gpu) as graph:
        step(on_device, inputs)
        optimizer.step()
    for seed in range(3):
        inputs.copy_(some(4, 2, seed=seed))
        graph.replay()
        reference.zero_grad()
        step(on_cpu, some(4, 2, seed=seed))
        reference.step()
    torch.testing.assert_close([tensor.detach().cpu() for tensor in on_device],
                               [tensor.detach() for tensor in on_cpu])  # fmt: skip
    assert gpu.violations() == []


def test_a_replay_draws_anew(gpu):
    torch.manual_seed(0)
    with capture(gpu) as graph:
        drawn = torch.rand(4, device="cuda")
    torch.manual_seed(0)
    expected = [torch.rand(4) for _ in range(2)]
    torch.manual_seed(0)
    for value in expected:
        graph.replay()
        assert drawn.cpu().equal(value)


def test_inputs_are_not_kept(gpu):
    a = gpu.tensor(torch.ones(1000))
    before = gpu.live_bytes()
    with capture(gpu) as graph:
        result = a + 1
    assert gpu.live_bytes() == before + 4000
    del a
    assert gpu.live_bytes() == before
    graph.replay()
    (found,) = gpu.violations()
    assert "aten::add.out, which reads Float [1000] (4000 bytes)" in found, found
    assert "has been freed since" in found, found
    assert content(result) == {UNWRITTEN}
    other = gpu.tensor(torch.ones(1000))  # perhaps where it was
    graph.replay()
    assert len(gpu.violations()) == 2 and content(result) == {UNWRITTEN}
    del other


def test_memory_of_a_graph_is_kept_until_it_is_reset(gpu):
    a, before = gpu.tensor(torch.ones(1000)), gpu.live_bytes()
    with capture(gpu) as graph:
        result = (a + 1) * 2
        address = result.data_ptr()
        del result
    assert gpu.live_bytes() == before + 8000
    others = [torch.empty(1000, device="cuda") for _ in range(4)]
    assert address not in [other.data_ptr() for other in others]
    graph.replay()
    del others
    assert ctypes.c_float.from_address(address).value == 4
    graph.reset()
    assert gpu.live_bytes() == before
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert gpu.violations() == []


def test_a_result_outlives_its_graph(gpu):
    a = gpu.tensor(torch.ones(1000))
    before = gpu.live_bytes()
    with capture(gpu) as graph:
        result = a + 1
        a * 2
    graph.replay()
    del graph
    assert gpu.live_bytes() == before + 4000 and result[0].item() == 2
    del result
    assert gpu.live_bytes() == before


def test_graphs_share_a_pool(gpu):
    a, before = gpu.tensor(torch.ones(1000)), gpu.live_bytes()
    with capture(gpu, pool=gpu.graph_pool_handle()) as first:
        between = a + 1
    with capture(gpu, pool=first.pool()) as second:
        result = between * 2
    assert first.pool() == second.pool()
    del between
    for graph in (first, second):
        graph.replay()
    assert result[0].item() == 4
    first.reset()
    second.replay()
    assert gpu.live_bytes() == before + 8000 and gpu.violations() == []
    del result
    second.reset()
    assert gpu.live_bytes() == before


def test_graphs_of_a_pool_share_what_is_free(gpu):
    a, pool, stream = gpu.tensor(torch.ones(3)), gpu.graph_pool_handle(), gpu.new_stream()
    with capture(gpu, pool, stream=stream) as first:
        kept, lost = (a + 1) * 2, a + 3
    address = lost.data_ptr()
    del lost
    with capture(gpu, pool) as unrelated:  # another stream's allocations have memory of their own
        a + 1
    with capture(gpu, pool, stream=stream) as second:
        result = kept + a
    first.replay()
    unrelated.replay()
    assert ctypes.c_float.from_address(address).value == 4
    second.replay()
    assert ctypes.string_at(address, 12) == bytes([UNWRITTEN]) * 12
    first.replay()
    assert kept.tolist() == [4] * 3 and result.tolist() == [5] * 3
    assert gpu.violations() == []
    first.replay()
    with gpu.stream(gpu.new_stream()):
        second.replay()
    found = [text for text in gpu.violations() if "free memory of its pool" in text]
    assert len(found) == 2 and "a CUDA graph on cuda:0 stream 0 wrote" in found[0], found
    gpu.reset()
    gpu.synchronize()


def test_a_replay_uses_its_memory_on_its_stream(gpu):
    a = gpu.tensor(torch.ones(3))
    with capture(gpu) as graph:
        result = a.add_(1) * 2
    side = gpu.new_stream()
    a.mul_(3)
    with gpu.stream(side):
        graph.replay()
    (found,) = gpu.violations()
    assert f"a CUDA graph on cuda:0 stream {side.stream_id} writes Float [3]" in found, found
    result.sum()
    (_, found) = gpu.violations()
    assert "aten::sum" in found and "a CUDA graph" in found and "wrote" in found, found
    gpu.reset()
    gpu.synchronize()
    graph.replay()
    assert gpu.counts()["operators"] == {"cuda:0 stream 0": 1} and gpu.violations() == []


def test_replay_by_address(gpu):
    a = gpu.tensor(torch.zeros(3))
    with capture(gpu) as graph:
        a.add_(1)
    replay = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(gpu.replay_address())
    replay(graph.address())
    thread = threading.Thread(target=replay, args=(graph.address(),))
    thread.start()
    thread.join()
    assert a.tolist() == [2, 2, 2]
    assert gpu.violations() == []


def test_other_streams_go_on_during_a_capture(gpu):
    a, b, c = (gpu.tensor(torch.ones(3)) for _ in range(3))
    side = gpu.new_stream()
    with capture(gpu) as graph:
        a.add_(1)
        with gpu.stream(side):
            assert b.add_(1).sum().item() == 6
            gpu.synchronize(side)
        thread = threading.Thread(target=lambda: c.add_(1).cpu())
        thread.start()
        thread.join()
    assert a.tolist() == [1, 1, 1] and c.tolist() == [2, 2, 2]
    graph.replay()
    assert a.tolist() == [2, 2, 2]
    assert gpu.violations() == []


WAITS = {
    "item": lambda gpu, a: a.sum().item(),
    "bool": lambda gpu, a: bool((a > 0).all()),
    "to the host": lambda gpu, a: a.cpu(),
    "to pinned memory": lambda gpu, a: gpu.pinned([4]).copy_(a, non_blocking=True),
    "from the host": lambda gpu, a: a.copy_(torch.ones(4)),
    "tensor": lambda gpu, a: torch.tensor([1.0], device="cuda"),
    "host indices": lambda gpu, a: a[torch.tensor([0, 1])],
    "nonzero": lambda gpu, a: a.nonzero(),
    "mask": lambda gpu, a: a[a > 0],
    "index with a mask": lambda gpu, a: torch.ops.aten.index(a, [a > 0]),
    "put with a mask": lambda gpu, a: a.index_put_((a > 0,), a),
    "masked_select": lambda gpu, a: a.masked_select(a > 0),
    "unique": lambda gpu, a: a.unique(),
    "unique_consecutive": lambda gpu, a: torch.unique_consecutive(a),
    "equal": lambda gpu, a: torch.equal(a, a),
    "repeat_interleave": lambda gpu, a: torch.repeat_interleave((a > 0).long()),
    "bounds of a histogram": lambda gpu, a: torch.histc(a, 4),
    "errors of solve": lambda gpu, a: torch.linalg.solve(a.expand(4, 4), a),
    "stream": lambda gpu, a: gpu.synchronize(gpu.current_stream()),
    "query": lambda gpu, a: gpu.current_stream().query(),
    "device": lambda gpu, a: gpu.synchronize(),
    "event": lambda gpu, a: gpu.current_stream().record_event(),
    "wait": lambda gpu, a: gpu.current_stream().wait_stream(gpu.new_stream()),
    "event of another stream": lambda gpu, a: gpu.new_stream().record_event().query(),
    "other device": lambda gpu, a: a.to("cuda:1"),
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_what_waits_fails_and_leaves_the_device_usable(gpu, wait):
    a, graph = gpu.tensor(torch.ones(4)), gpu.CUDAGraph()
    before = gpu.live_bytes()
    gpu.synchronize()
    stream = gpu.new_stream()
    with gpu.stream(stream):
        graph.capture_begin()
        made = a.add_(1) * 2
        with pytest.raises(RuntimeError, match=NOT_PERMITTED):
            wait(gpu, a)
        with pytest.raises(RuntimeError, match="failed before"):
            a + 1
        with pytest.raises(RuntimeError, match="failed before"):
            graph.capture_end()
        a.add_(3)
        assert a.tolist() == [4] * 4
    del made
    assert gpu.live_bytes() == before
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with gpu.stream(stream):
        graph.capture_begin()
        a.add_(1)
        graph.capture_end()
        graph.replay()
        assert a.tolist() == [5] * 4
    gpu.synchronize()
    assert gpu.violations() == []


def test_errors_of_operators_leave_the_capture(gpu):
    a = gpu.tensor(torch.ones(3))
    with capture(gpu) as graph:
        with pytest.raises(RuntimeError, match="must match the size"):
            a + torch.empty(4, device="cuda")
        a.add_(1)
    graph.replay()
    assert a.tolist() == [2, 2, 2]


def test_captures_are_refused(gpu):
    graph = gpu.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="without capture_begin"):
        graph.capture_end()
    with capture(gpu) as graph, pytest.raises(RuntimeError, match="is being captured already"):
        gpu.CUDAGraph().capture_begin()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    with pytest.raises(ValueError, match="expected 'global', 'thread_local' or 'relaxed'"):
        gpu.CUDAGraph().capture_begin(capture_error_mode="local")


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_other_threads_may_query_events(gpu, mode):
    event, found = gpu.current_stream().record_event(), []
    with capture(gpu, mode=mode):
        thread = threading.Thread(target=lambda: found.append(event.query()))
        thread.start()
        thread.join()
    assert found == [True]
