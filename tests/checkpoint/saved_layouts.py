"""A state of tensors under many placements, told by the number of workers alone."""

import torch

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard

SIZES = {
    "even": (8, 12), "uneven": (7, 5), "few": (2, 3), "long": (13,), "cube": (3, 5, 4),
    "nothing": (0, 4), "number": (),
}  # fmt: skip
DTYPES = {"even": torch.float32, "uneven": torch.bfloat16, "few": torch.int64,
          "long": torch.float8_e4m3fn, "cube": torch.complex64, "nothing": torch.float32,
          "number": torch.float64}  # fmt: skip


def whole(name):
    """The value of a tensor, a CPU tensor."""
    sizes = SIZES[name]
    count = torch.Size(sizes).numel()
    return (torch.arange(count) % 120 - 60).view(sizes).to(DTYPES[name])


def placements(name, mesh, turn):
    """Some placements, others for each `turn`."""
    dims = len(SIZES[name])
    choices = [Replicate(), *(Shard(d) for d in range(dims))]
    return [choices[(turn + axis) % len(choices)] for axis in range(mesh.ndim)]


def placed(mesh, turn=0):
    """{name: dtorch tensor} with the values of whole()."""
    tensors = {
        name: dt.distribute_tensor(whole(name), mesh, placements(name, mesh, turn))
        for name in SIZES
    }
    tensors["meshless"] = torch.arange(5.0).to("dtorch")
    return tensors


def blank(mesh, turn=0):
    """The same with other values."""
    return {name: torch.zeros_like(tensor) for name, tensor in placed(mesh, turn).items()}


def check(tensors):
    for name in SIZES:
        value, expected = tensors[name].cpu(), whole(name)
        assert value.dtype == expected.dtype, name
        assert torch.equal(
            value.contiguous().view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8)
        ), name
    assert torch.equal(tensors["meshless"].cpu(), torch.arange(5.0))
