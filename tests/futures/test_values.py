"""Reading values. Runs in any job: test_future_jobs.py starts it with other workers."""

import asyncio
import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from worker_kernels import slow

import dtorch_mpi as dt


@pytest.mark.parametrize("make", [
    lambda: torch.randn(5, 3),
    lambda: torch.randn(5, 6).t()[1:, ::2],
    lambda: torch.tensor(2.5),
    lambda: torch.empty(0, 4),
    lambda: torch.arange(10) % 3 == 0,
    lambda: torch.randn(4, dtype=torch.complex64).conj(),
    lambda: torch.randn(300, 300),
], ids=["plain", "strided", "scalar", "empty", "bool", "conj", "large"])  # fmt: skip
def test_value_is_the_tensor(make):
    value = make()
    read = value.to("dtorch").to_torch()
    assert read.device.type == "cpu" and read.dtype == value.dtype
    assert torch.equal(read, value)


def test_tensors_of_more_dims_than_travel():
    with pytest.raises(ValueError, match="128 dims at most to [a-z ]+, got 129"):
        torch.empty([1] * 129).to("dtorch")
    with pytest.raises(dt.WorkerError, match="128 dims at most to [a-z ]+, got 129"):
        torch.empty([1] * 129, device="dtorch").to_torch()
    value = torch.randn(2, *[1] * 63)
    assert torch.equal(value.to("dtorch").to_torch(), value)


@pytest.mark.parametrize("placements", [
    [dt.Shard(0)], [dt.Shard(1)], [dt.Replicate()], [dt.Partial()],
], ids=str)  # fmt: skip
@pytest.mark.parametrize("sizes", [(7, 5), (1, 8), (0, 3)], ids=str)
def test_value_of_any_placement_is_the_full_one(placements, sizes):
    value = torch.randn(sizes)
    mesh = dt.init_device_mesh((dt.num_workers(),))
    placed = dt.distribute_tensor(value.to("dtorch"), mesh, placements)
    torch.testing.assert_close(placed.to_torch(), value)


def test_get_twice_gives_the_same_tensor():
    future = torch.ones(3, device="dtorch").to_torch_async()
    first = future.get()
    assert future.get() is first
    assert future.wait(0) is first
    assert future.is_ready()


def test_wait_raises_timeout_and_the_value_can_still_be_had():
    future = slow(0.5).to_torch_async()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="50 ms"):
        future.wait(50)
    assert 0.04 < time.monotonic() - began < 0.4
    assert not future.is_ready()
    assert future.wait(20_000).tolist() == [3.0, 3.0]
    assert future.is_ready()


def test_asking_does_not_wait():
    a = torch.randn(1200, 1200, device="dtorch")
    (a @ a).to_torch_async().get()  # what there is to work out of such calls is worked out here
    began = time.monotonic()
    for _ in range(4):
        a = a @ a
    future = a.to_torch_async()
    issued = time.monotonic() - began
    future.get()
    assert issued < (time.monotonic() - began) / 2


def test_value_is_a_snapshot():
    x = torch.zeros(4, device="dtorch")
    before = x.to_torch_async()
    view = x[1:3]
    view.add_(1)
    after = x.to_torch_async()
    x.fill_(9)
    assert before.get().tolist() == [0, 0, 0, 0]
    assert after.get().tolist() == [0, 1, 1, 0]


def test_value_is_the_users_own():
    x = torch.zeros(4, device="dtorch")
    value = x.to_torch()
    value.fill_(5)
    assert x.to_torch().tolist() == [0, 0, 0, 0]
    value.requires_grad_().sum().backward()
    assert value.grad.tolist() == [1, 1, 1, 1]


def test_sync_waits_for_everything():
    began = time.monotonic()
    slow(0.3)
    pending = dt.sync_future()
    assert not pending.is_ready()
    dt.sync()
    assert time.monotonic() - began > 0.25
    assert pending.get() is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_futures_are_not_copied(copied, recwarn):
    future = torch.ones(2, device="dtorch").to_torch_async()
    with pytest.raises(TypeError, match="get"):
        copied(future)
    gc.collect()
    assert future.get().tolist() == [1.0, 1.0] and not recwarn.list


def test_dropped_futures_are_harmless():
    x = torch.randn(64, 64, device="dtorch")
    for _ in range(500):
        (x @ x).to_torch_async()
    slow(0.05).to_torch_async()
    gc.collect()
    dt.sync()
    assert torch.equal(torch.ones(2, device="dtorch").to_torch(), torch.ones(2))


def test_futures_from_several_threads():
    wrong = []

    def work(number):
        try:
            x = torch.full((3,), float(number), device="dtorch")
            for step in range(50):
                x = x + 1
                value = x.to_torch_async().get()
                if value.tolist() != [number + step + 1.0] * 3:
                    wrong.append((number, step, value))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_future_read_by_several_threads():
    future = slow(0.2).to_torch_async()
    values = []
    threads = [threading.Thread(target=lambda: values.append(future.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 4 and all(value is values[0] for value in values)


def test_many_futures_read_by_several_threads_at_once():
    x = torch.arange(256.0, device="dtorch")
    wrong = []

    def read(futures):
        for number, future in enumerate(futures):
            if not torch.equal(future.get(), torch.arange(256.0) + number):
                wrong.append(number)

    for _ in range(10):
        futures = [(x + number).to_torch_async() for number in range(40)]
        threads = [threading.Thread(target=read, args=[futures]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_await_leaves_the_loop_to_others():
    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        await asyncio.sleep(0)
        value = await slow(0.5).to_torch_async()
        ticker.cancel()
        return value, ticks

    value, ticks = asyncio.run(main())
    assert value.tolist() == [3.0, 3.0]
    assert len(ticks) > 15
    assert max(b - a for a, b in zip(ticks, ticks[1:], strict=False)) < 0.25


def test_a_thousand_awaited_at_once():
    x = torch.arange(1000.0, device="dtorch")

    async def main():
        futures = [x[i].to_torch_async() for i in range(1000)]
        return await asyncio.gather(*futures, dt.sync_future())

    *values, synced = asyncio.run(main())
    assert synced is None
    assert [value.item() for value in values] == list(range(1000))


def test_an_await_that_times_out_leaves_the_value():
    async def main():
        future = slow(0.3).to_torch_async()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(future), 0.05)
        return await future

    async def _awaited(future):
        return await future

    assert asyncio.run(main()).tolist() == [3.0, 3.0]
