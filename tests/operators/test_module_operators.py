"""Every operator that PyTorch's modules and optimizers call gives the CPU's answer."""

import copy

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import dtorch_mpi as dt

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from opdb_cases import placements_for_mesh  # noqa: E402
from recorded_calls import record  # noqa: E402


@pytest.fixture(scope="module")
def calls():
    return record()


def moved(value, place):
    if isinstance(value, torch.Tensor):
        return place(value)
    if isinstance(value, torch.device):
        return torch.device("dtorch")
    return value


def check(func, call, place):
    """Raises where the operator's answer, or what it wrote, is not the CPU's."""
    args, kwargs = copy.deepcopy(call)
    ours = tree_map(lambda value: moved(value, place), call)
    expected = [func(*args, **kwargs), args, kwargs]
    found = [func(*ours[0], **ours[1]), *ours]
    if "empty" in func.name():
        return
    if func.overloadpacket is torch.ops.aten._ctc_loss:
        # Beyond a sample's length the second result is whatever was in memory.
        expected, found = expected[0][0], found[0][0]
    for wanted, got in zip(tree_leaves(expected), tree_leaves(found), strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers, shape", [(1, None), (4, (2, 2)), (3, (3,))],
                         indirect=["workers"], ids=["device", "mesh", "uneven"])
def test_operators_of_modules_and_optimizers(calls, workers, shape):
    mesh = shape and dt.init_device_mesh(shape)

    def place(tensor):
        if mesh is None:
            return tensor.clone().to("dtorch")
        placements = placements_for_mesh(tensor)[: mesh.ndim]
        return dt.distribute_tensor(tensor.clone(), mesh, placements)

    faults = []
    for func, found in calls.items():
        for call in found:
            try:
                check(func, call, place)
            except Exception as error:
                faults.append(f"{func}: {type(error).__name__}: {str(error)[:300]}")
    assert len(calls) > 150
    assert not faults, "\n".join(faults)
