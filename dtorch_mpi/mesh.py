"""Meshes and shardings: PyTorch's own classes, and the numbers that workers know them by."""

import threading
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch._C._distributed import Placement
from torch.distributed.device_mesh import DeviceMesh

from . import _core, _sharding

# Functions import the other kinds of placements: torch.distributed.tensor takes most of a second, a
# worker rank uses none of it, and rank 0 only once a tensor is placed.

# One placement for each axis; a single one of a mesh with one axis; None replicates.
GivenPlacements: TypeAlias = Placement | Sequence[Placement] | None

_lock = threading.RLock()  # of the tables, while a number is given out
_meshes = {}  # (workers, shape, names) -> number
# id -> (DeviceMesh, number): DeviceMesh.mesh is worked out anew each time it is asked for.
_met = {}
_mesh_of = {}  # number -> DeviceMesh
_shardings = {}  # (mesh number, packed placements) -> number
_sharding_of = {}  # number -> (DeviceMesh, placements)


def init_device_mesh(
    mesh_shape: Sequence[int], *, mesh_dim_names: tuple[str, ...] | None = None
) -> DeviceMesh:
    """A mesh of all workers, as torch.distributed.init_device_mesh makes it.

    mesh_shape: workers along each axis; their product is the number of workers. Raises
    ValueError otherwise.
    """
    from .runtime import runtime

    num_workers = runtime().num_workers
    mesh_shape = tuple(mesh_shape)
    size = 1
    for extent in mesh_shape:
        size *= extent
    if size != num_workers or any(extent < 1 for extent in mesh_shape):
        raise ValueError(
            f"a mesh of shape {mesh_shape} has {size} workers, and this job has {num_workers}: "
            "the product must be the number of workers (DTORCH_WORKERS=N without a launcher, "
            "mpirun -n N+1 with one)"
        )
    if mesh_dim_names is not None and len(mesh_dim_names) != len(mesh_shape):
        raise ValueError(f"{len(mesh_shape)} axes and {len(mesh_dim_names)} names")
    mesh = make_mesh(torch.arange(num_workers).view(mesh_shape), mesh_dim_names)
    mesh_number(mesh)
    return mesh


class WorkersMesh(DeviceMesh):
    """A mesh that belongs to no one of its workers: a slice needs an index, as in mesh["pp", 0]."""

    def __getitem__(self, names):
        """The slice at an index of an axis, a mesh of the axes that are left.

        mesh["pp", 0]: the workers whose place along the axis "pp" is 0. Of a mesh with no other
        axis: a mesh of one worker. Raises ValueError for an axis or index that the mesh does not
        have, and for a name alone.
        """
        given = (names,) if isinstance(names, str) else tuple(names)
        if given == self.mesh_dim_names:
            return self
        if len(given) != 2 or not isinstance(given[1], int) or isinstance(given[1], bool):
            raise ValueError(
                f"mesh[{names!r}] would name one slice of {self}, and the program speaks for all: "
                "name one by its index, as in mesh['pp', 0], or give the whole mesh one placement "
                "for each axis, Replicate() on those that are left out; mesh.size(axis) tells an "
                "axis's length"
            )
        axis_name, index = given
        axes = self.mesh_dim_names or ()
        if axis_name not in axes:
            raise ValueError(f"{self} has no axis named {axis_name!r}: its axes are {list(axes)}")
        axis = axes.index(axis_name)
        if not -self.size(axis) <= index < self.size(axis):
            raise ValueError(
                f"index {index} of axis {axis_name!r}: expected one below {self.size(axis)}"
            )
        place = axis, index % self.size(axis)
        if place not in self._slices:
            workers = self.mesh.select(*place)
            left = axes[:axis] + axes[axis + 1 :]
            self._slices[place] = make_mesh(
                workers.reshape(workers.shape or (1,)), left or (axis_name,)
            )
        return self._slices[place]


def make_mesh(workers, names=None):
    # _rank: the propagator needs a member of the mesh; which one does not matter, since
    # only global sizes are taken from it.
    mesh = WorkersMesh(
        "cpu", workers, mesh_dim_names=names, _init_backend=False, _rank=int(workers.flatten()[0])
    )
    mesh._slices = {}  # (axis, index) -> the mesh there, the same one each time
    return mesh


def mesh_number(mesh):
    """The number of a mesh, defined on the workers when it is new."""
    met = _met.get(id(mesh))
    if met is not None:
        return met[1]
    check_mesh(mesh)
    workers = tuple(mesh.mesh.flatten().tolist())
    key = (workers, tuple(mesh.mesh.shape), mesh.mesh_dim_names)
    number = _meshes.get(key)
    if number is None:
        with _lock:
            number = _meshes.get(key)
            if number is None:
                number = len(_meshes) + 1
                _sharding.define_mesh(number, list(mesh.mesh.shape), list(workers))
                _core.define_mesh(number, list(mesh.mesh.shape), list(workers))
                _mesh_of[number] = mesh
                # Last: another thread that finds the number may use it at once.
                _meshes[key] = number
    _met[id(mesh)] = mesh, number
    return number


def is_whole(mesh):
    """Whether every worker is part of it: tensors without a mesh are on all of them."""
    from .runtime import runtime

    return mesh.size() == runtime().num_workers


def whole_mesh():
    """All workers along one axis; the same mesh each time."""
    from .runtime import runtime

    num_workers = runtime().num_workers
    number = _meshes.get((tuple(range(num_workers)), (num_workers,), None))
    return init_device_mesh((num_workers,)) if number is None else _mesh_of[number]


def check_mesh(mesh):
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"expected a DeviceMesh, got {type(mesh).__name__}: make one with "
                        "dtorch_mpi.init_device_mesh")


def check_placements(mesh, placements, num_dims=None):
    """As a tuple; raises ValueError unless there is one placement for each axis.

    num_dims: of the tensor, where it is known. Negative dims then count from its end, and a dim
    that it does not have is a ValueError.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    check_mesh(mesh)
    if isinstance(placements, Placement):
        placements = (placements,)
    placements = tuple(placements) if placements is not None else (Replicate(),) * mesh.ndim
    if len(placements) != mesh.ndim:
        raise ValueError(
            f"{len(placements)} placements for a mesh of {mesh.ndim} axes: give one for each axis"
        )
    for placement in placements:
        if not isinstance(placement, (Shard, Replicate, Partial)):
            raise TypeError(f"expected Shard, Replicate or Partial, got {placement!r}")
    if num_dims is None:
        return placements
    return tuple(_from_the_front(placement, num_dims) for placement in placements)


def _from_the_front(placement, num_dims):
    from torch.distributed.tensor import Shard

    dim = getattr(placement, "dim", None)
    if dim is None:
        return placement
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"{placement} of a tensor with {num_dims} dims: expected a dim below it")
    return Shard(dim + num_dims) if dim < 0 else placement


def has_partial(placements):
    return any(placement.is_partial() for placement in placements)


def without_partial(placements):
    """The same, replicated in place of partial sums."""
    from torch.distributed.tensor import Replicate

    return tuple(Replicate() if placement.is_partial() else placement for placement in placements)


def sharding_number(mesh, placements):
    """The number of a sharding, defined on the workers when it is new."""
    from .sharding.placements import pack

    placements = check_placements(mesh, placements)
    number_of_mesh = mesh_number(mesh)
    packed = tuple(pack(placements))
    key = (number_of_mesh, packed)
    number = _shardings.get(key)
    if number is None:
        # The one that every worker has whole is always there: tensors can be laid out so.
        if not all(placement.is_replicate() for placement in placements):
            sharding_number(mesh, None)
        with _lock:
            number = _shardings.get(key)
            if number is None:
                number = len(_shardings) + 1
                _sharding.define_sharding(number, number_of_mesh, list(packed))
                _core.define_sharding(number, number_of_mesh, list(packed))
                _sharding_of[number] = (_mesh_of[number_of_mesh], placements)
                _shardings[key] = number
    return number


def sharding_of(number):
    """(mesh, placements) of a sharding's number; (None, None) for the default, 0."""
    return _sharding_of.get(number, (None, None))


def packed_of(number):
    from .sharding.placements import pack

    mesh, placements = _sharding_of[number]
    return list(mesh.mesh.shape), pack(placements)


def forget_all():
    """The workers are gone, and with them what the numbers mean."""
    for table in (_meshes, _met, _mesh_of, _shardings, _sharding_of):
        table.clear()
    _sharding.forget_all()  # else the next workers' mesh 1 would be taken for this one
