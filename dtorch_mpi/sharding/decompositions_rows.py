"""Embedding with the vocabulary cut: each worker looks for the indices among the rows it has.

What it finds, zeros elsewhere, adds up to the result. The gradient of the rows it has needs no
other worker's, and lies as the table does.
"""

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi import _sharding  # noqa: F401 -- it has the operators
from dtorch_mpi.sharding.formulas import LINEAR
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rule_table import register
from dtorch_mpi.sharding.selection import AxisRule

aten, dtorch = torch.ops.aten, torch.ops.dtorch
_EMBEDDING, _GRADIENT = aten.embedding.default, aten.embedding_dense_backward.default

# How tables with cut rows lay when they were last used, by mesh and sizes. A gradient's call does
# not name its table. Should another table of these sizes lie elsewhere, its gradient is brought
# there after.
_tables: dict[tuple, tuple] = {}


@register(dtorch.embedding_rows.default)
def _embedding_rows(args, kwargs, outputs):
    whole, ndim = Replicate(), args[1].meta.ndim
    return [
        AxisRule((Partial("sum"),), (Shard(0), whole, Shard(0))),
        AxisRule((Shard(ndim),), (Shard(1), whole, whole)),
        *[AxisRule((Shard(d),), (whole, Shard(d), whole)) for d in range(ndim)],
    ]


@register(dtorch.embedding_rows_backward.default)
def _embedding_rows_backward(args, kwargs, outputs):
    whole = Replicate()
    found = [
        AxisRule(rule.outputs, (*rule.inputs, whole)) for rule in _gradients(args[1], args[4])
    ]
    return [AxisRule((Shard(0),), (whole, whole, Shard(0))), *found]


@register(_GRADIENT)
def _embedding_dense_backward(args, kwargs, outputs):
    # PyTorch's rule cuts the batch even where how often an index occurs in it matters.
    return _gradients(args[1], len(args) > 4 and args[4])


def _gradients(indices, scale_grad_by_freq):
    ndim = indices.meta.ndim
    rules = [AxisRule((Shard(1),), (Shard(ndim), Replicate()))]
    rules += [AxisRule((p,), (p, Replicate())) for p in LINEAR]
    if not scale_grad_by_freq:
        rules += [AxisRule((Partial("sum"),), (Shard(d), Shard(d))) for d in range(ndim)]
    return rules


def _rows(count, like):
    return torch.arange(count, device=like.device)


def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return dtorch.embedding_rows(
        weight, indices, _rows(weight.shape[0], indices), weight.shape[0]
    )


def embedding_of_cut_batch(
    weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False
):
    """Where one axis cuts both the table and the batch: that axis cuts the columns meanwhile.

    Of the batch the indices alone are brought together.
    """
    mesh, table, places = weight.device_mesh, list(weight.placements), list(indices.placements)
    for axis, (cut, place) in enumerate(zip(weight.placements, indices.placements, strict=True)):
        if isinstance(cut, Shard) and isinstance(place, Shard):
            places[axis] = Replicate()
            if cut == Shard(0) and _pieces(mesh, table, axis, 1) <= weight.shape[1]:
                table[axis] = Shard(1)
    made = aten.embedding(
        weight.redistribute(mesh, table), indices.redistribute(mesh, places), padding_idx,
        scale_grad_by_freq, sparse,
    )
    after = [
        given if place != given else now
        for now, place, given in zip(made.placements, places, indices.placements, strict=True)
    ]
    return made.redistribute(mesh, after)


def _pieces(mesh, placements, axis, dim):
    """Into how many pieces ``dim`` would be cut if the axis cut it too."""
    count = mesh.shape[axis]
    for length, placement in zip(mesh.shape, placements, strict=True):
        count *= length if placement == Shard(dim) else 1
    return count


def embedding_dense_backward(
    grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
):
    # One of the two may be on no mesh, and so whole on every worker.
    mesh = next(given.device_mesh for given in (grad_output, indices) if given.device_mesh)
    table = _tables[_key(mesh, num_weights, grad_output.shape[-1])]
    whole = (Replicate(),) * mesh.ndim
    placements = [
        given.placements if given.device_mesh else whole for given in (grad_output, indices)
    ]
    wanted = [
        Shard(0) if makes_own else Replicate()
        for makes_own in _axes_of_own_rows(table, *placements)
    ]
    rows = _rows(num_weights, indices).redistribute(mesh, wanted)
    return dtorch.embedding_rows_backward(
        grad_output, indices, rows, padding_idx, scale_grad_by_freq
    )


def _axes_of_own_rows(table, grad, indices):
    """For each axis, whether its workers make the gradient of the rows that they have."""
    return [
        cut == Shard(0) and isinstance(before, Replicate) and isinstance(place, Replicate)
        for cut, before, place in zip(table, grad, indices, strict=True)
    ]


def is_cut_by_rows(op, args: list) -> bool:
    """Whether the call looks up rows of a table that workers have some rows of."""
    return (
        op is _EMBEDDING and isinstance(args[0], ShardedMeta) and Shard(0) in args[0].placements
    )


def rows_decomposition(op, args: list):
    """What to call in place of an embedding or its gradient, for more than the call itself says.

    None where the call's own rules serve.
    """
    if op is _EMBEDDING and all(isinstance(given, ShardedMeta) for given in args[:2]):
        weight, indices = args[:2]
        if is_cut_by_rows(op, args):
            _tables[_key(weight.mesh, *weight.meta.shape)] = weight.placements
        axes = zip(weight.placements, indices.placements, strict=True)
        are_full = weight.meta.numel() and indices.meta.numel()
        if are_full and any(isinstance(p, Shard) and isinstance(q, Shard) for p, q in axes):
            return embedding_of_cut_batch
    if op is _GRADIENT and all(isinstance(given, ShardedMeta) for given in args[:2]):
        grad, indices = args[:2]
        table = _tables.get(_key(grad.mesh, args[2], grad.meta.shape[-1]))
        if table is not None and grad.meta.numel() and any(
            _axes_of_own_rows(table, grad.placements, indices.placements)
        ):
            return embedding_dense_backward
    return None


def _key(mesh, rows, columns):
    return mesh, rows, columns
