"""Where the tensors of a program lie: on one worker, cut both ways by a grid, cut unevenly."""

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.utils import _pytree as pytree

import dtorch_mpi as dt

WORKERS = {"one": 1, "grid": 4, "uneven": 3}


def placements(layout, tensor):
    """On a 2 x 2 mesh for "grid", on 3 workers for "uneven"."""
    if layout == "uneven":
        return [Shard(0) if tensor.ndim else Replicate()]
    if tensor.ndim >= 2:
        return [Shard(0), Shard(tensor.ndim - 1)]
    return [Shard(0) if tensor.ndim else Replicate(), Replicate()]


def put(layout, value):
    """Copies on the device of a tensor, a module, or of tensors in any nesting."""
    mesh = None
    if layout != "one":
        mesh = dt.init_device_mesh((2, 2) if layout == "grid" else (3,))

    def placed(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if mesh is None:
            return tensor.detach().to("dtorch").requires_grad_(tensor.requires_grad)
        return dt.distribute_tensor(tensor, mesh, placements(layout, tensor))

    if not isinstance(value, torch.nn.Module):
        return pytree.tree_map(placed, value)
    value = value.to("dtorch")
    for name, held in vars(value).items():
        setattr(value, name, placed(held))
    if mesh is not None:
        with torch.no_grad():
            for tensor in (*value.parameters(), *value.buffers()):
                tensor.data = dt.distribute_tensor(
                    tensor.detach(), mesh, placements(layout, tensor)
                )
    return value


def copied(value):
    """Copies on the CPU; leaves stay leaves that want gradients."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf,
        value,
    )


def read(value):
    """The tensors of a nesting on the CPU, without history."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, value
    )
