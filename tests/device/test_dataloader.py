"""Forked DataLoader workers beside the device."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

SAMPLES = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))


class Upper(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((2,), float(i)) * 2


class OnTheDevice(Upper):
    def __getitem__(self, i):
        return torch.full((2,), float(i), device="dtorch")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "options", [{}, {"pin_memory": True}, {"persistent_workers": True}], ids=str
)
def test_forked_workers(options):
    weight = torch.ones(2, device="dtorch")
    loader = DataLoader(
        SAMPLES, batch_size=5, num_workers=2, multiprocessing_context="fork", **options
    )
    for _ in range(2):
        totals, labels = [], []
        for x, y in loader:
            totals.append((x.to("dtorch") * weight).sum().item())
            labels += y.to("dtorch").tolist()
        assert sum(totals) == sum(range(40))
        assert labels == list(range(20))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_device_in_a_forked_worker_is_refused():
    torch.ones(2, device="dtorch").tolist()
    loader = DataLoader(OnTheDevice(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="forked from one that uses the dtorch device"):
        list(loader)
    assert torch.ones(2, device="dtorch").tolist() == [1, 1]


def test_a_forked_child_lets_go_of_tensors_and_exits():
    x = torch.ones(3, device="dtorch")
    child = os.fork()
    if child == 0:
        del x
        os._exit(7 if torch.dtorch._is_in_bad_fork() else 8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert x.tolist() == [1, 1, 1]


def test_workers_of_an_iterable_with_device_batches():
    loader = DataLoader(
        Upper(), batch_size=2, collate_fn=lambda rows: torch.stack(rows).to("dtorch")
    )
    assert [batch.device.type for batch in loader] == ["dtorch"] * 2


def test_default_device_and_a_shuffling_loader():
    torch.set_default_device("dtorch")
    try:
        loader = DataLoader(SAMPLES, shuffle=True, generator=torch.Generator(device="dtorch"))
        assert sorted(int(y) for _, y in loader) == list(range(20))
    finally:
        torch.set_default_device(None)
