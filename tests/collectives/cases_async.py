"""Cases: point to point, handles, order, and what may be touched when."""

import time

import torch

from .calls import (
    allgather,
    allreduce,
    as_process_group,
    assert_close,
    assert_equal,
    barrier,
    broadcast,
    make,
    reduced,
)
from .conformance import case


@case(min_size=2)
def send_around(backend, rank, size):
    got = torch.empty(4, 3)
    works = [backend.send([make(rank, (4, 3))], (rank + 1) % size, 7),
             backend.recv([got], (rank - 1) % size, 7)]
    for work in works:
        work.wait()
    assert_equal(got, make((rank - 1) % size, (4, 3)))


@case(min_size=2)
def send_by_tag(backend, rank, size):
    """The receiver picks by tag; one tag keeps its order."""
    if rank == 0:
        works = [backend.send([torch.tensor([float(i)])], 1, tag)
                 for i, tag in enumerate((5, 6, 5))]
        for work in works:
            work.wait()
    elif rank == 1:
        got = [torch.empty(1) for _ in range(3)]
        works = [backend.recv([tensor], 0, tag)
                 for tensor, tag in zip(got, (6, 5, 5), strict=True)]
        for work in works:
            work.wait()
        assert [tensor.item() for tensor in got] == [1.0, 0.0, 2.0]


@case(((0,),), ((1_000_003,),), min_size=2)
def send_shape(backend, rank, size, shape):
    if rank == 0:
        backend.send([make(0, shape)], size - 1, 0).wait()
    elif rank == size - 1:
        got = torch.empty(shape)
        backend.recv([got], 0, 0).wait()
        assert_equal(got, make(0, shape))


@case(needs=("strided",), min_size=2)
def send_strided(backend, rank, size):
    if rank == 0:
        backend.send([make(0, (3, 4)).t()], 1, 0).wait()
    elif rank == 1:
        base = torch.zeros(8, 3)
        backend.recv([base[::2]], 0, 0).wait()
        assert_equal(base[::2], make(0, (3, 4)).t())


@case(needs=("any_source",), min_size=2)
def receive_from_any(backend, rank, size):
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            got = torch.empty(1)
            work = backend.recv_anysource([got], 3)
            work.wait()
            assert work._source_rank() == int(got.item())
            seen.add(int(got.item()))
        assert seen == set(range(1, size))
    else:
        backend.send([torch.tensor([float(rank)])], 0, 3).wait()


@case()
def barrier_holds_everyone(backend, rank, size):
    barrier(backend).wait()
    start = time.monotonic()
    if rank == size - 1:
        time.sleep(0.15)
    barrier(backend).wait()
    assert time.monotonic() - start > 0.1


@case()
def many_under_way(backend, rank, size):
    """Handles are waited for in another order than their collectives were issued in."""
    inputs = [[make(r, (n * 50,), seed=n) for n in range(12)] for r in range(size)]
    tensors = [t.clone() for t in inputs[rank]]
    gathered = [torch.empty(3) for _ in range(size)]
    works = [allreduce(backend, [t]) for t in tensors]
    works.append(allgather(backend, gathered, make(rank, (3,))))
    works.append(broadcast(backend, tensors[0], 0))
    for work in reversed(works):
        work.wait()
    for n, tensor in enumerate(tensors):
        assert_close(tensor, reduced([inputs[r][n] for r in range(size)]))
    assert_equal(torch.stack(gathered), torch.stack([make(r, (3,)) for r in range(size)]))


@case(min_size=2)
def issue_does_not_wait(backend, rank, size):
    barrier(backend).wait()
    tensor = torch.ones(1000)
    if rank == 0:
        start = time.monotonic()
        work = allreduce(backend, [tensor])
        took = time.monotonic() - start
        assert not work.is_completed(), "complete before the others came"
        assert took < 0.2, f"the call took {took:.3f} s"
    else:
        time.sleep(0.4)
        work = allreduce(backend, [tensor])
    work.wait()
    assert work.is_completed() and work.is_success()
    assert_equal(tensor, torch.full((1000,), float(size)))


@case(needs=("completes_when_polled",))
def completes_by_polling(backend, rank, size):
    tensor = torch.ones(10)
    work = allreduce(backend, [tensor])
    end = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < end, "not complete after 20 s"
        time.sleep(0.001)
    assert_equal(tensor, torch.full((10,), float(size)))


@case()
def buffers_are_free_after_wait(backend, rank, size):
    """Overwriting an input after wait() never reaches another member."""
    for step in range(60):
        n = 20_000 if step % 20 == 0 else 64
        tensor = torch.full((n,), float(rank + step))
        gathered = [torch.empty(n) for _ in range(size)]
        allgather(backend, gathered, tensor).wait()
        tensor.fill_(-1)
        for r, output in enumerate(gathered):
            assert (output == r + step).all(), f"step {step}, from {r}: {output}"
        tensor.fill_(rank + step)
        broadcast(backend, tensor, step % size).wait()
        assert (tensor == step % size + step).all(), f"step {step}: {tensor}"
        tensor.fill_(rank)
        allreduce(backend, [tensor]).wait()
        assert (tensor == size * (size - 1) / 2).all(), f"step {step}: {tensor}"
        tensor.fill_(-2)


@case()
def keeps_memory_alive(backend, rank, size):
    """The caller may drop its tensors and handles at once."""
    for step in range(40):
        allreduce(backend, [torch.ones(5000)])
        outputs = [torch.empty(100) for _ in range(size)]
        work = allgather(backend, outputs, torch.full((100,), float(rank + step)))
        torch.full((100,), -1.0)
        work.wait()
        for r, output in enumerate(outputs):
            assert (output == r + step).all()


@case(needs=("results",))
def result_is_the_output(backend, rank, size):
    tensor = torch.ones(3)
    work = allreduce(backend, [tensor])
    work.wait()
    (result,) = work.result()
    assert result.data_ptr() == tensor.data_ptr()


@case(needs=("futures",))
def future_of_work(backend, rank, size):
    tensor = torch.ones(3)
    work = allreduce(backend, [tensor])
    future = work.get_future()
    total = future.then(lambda done: done.value()[0].sum().item())
    assert total.wait() == 3 * size
    assert_equal(future.wait()[0], torch.full((3,), float(size)))
    assert work.get_future().done()


@case()
def in_a_process_group(backend, rank, size):
    """What PyTorch's own functions call."""
    group = as_process_group(backend, rank, size)
    tensor = make(rank, (8,))
    group.allreduce([tensor]).wait()
    assert_close(tensor, reduced([make(r, (8,)) for r in range(size)]))
    assert group.rank() == rank and group.size() == size
