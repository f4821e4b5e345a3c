"""Meshes and shardings: PyTorch's own classes, and the numbers that workers know them by."""

import threading

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from . import _core, _sharding
from .sharding.placements import pack

_lock = threading.RLock()  # of the tables, while a number is given out
_meshes = {}  # (workers, shape, names) -> number
# id -> (DeviceMesh, number): DeviceMesh.mesh is worked out anew each time it is asked for.
_met = {}
_mesh_of = {}  # number -> DeviceMesh
_shardings = {}  # (mesh number, packed placements) -> number
_sharding_of = {}  # number -> (DeviceMesh, placements)


def init_device_mesh(mesh_shape, *, mesh_dim_names=None):
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
    """A mesh that belongs to no one of its workers, so none of its slices is `the` one."""

    def __getitem__(self, names):
        given = (names,) if isinstance(names, str) else tuple(names)
        if given == self.mesh_dim_names:
            return self
        raise ValueError(
            f"mesh[{names!r}] would name one slice of {self}, and the program speaks for all: give "
            "the whole mesh one placement for each axis, Replicate() on those that are left out; "
            "mesh.size(axis) tells an axis's length"
        )


def make_mesh(workers, names=None):
    # _rank: the propagator needs a member of the mesh; which one does not matter, since
    # only global sizes are taken from it.
    return WorkersMesh(
        "cpu", workers, mesh_dim_names=names, _init_backend=False, _rank=int(workers.flatten()[0])
    )


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


def check_mesh(mesh):
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"expected a DeviceMesh, got {type(mesh).__name__}: make one with "
                        "dtorch_mpi.init_device_mesh")


def check_placements(mesh, placements, num_dims=None):
    """As a tuple; raises ValueError unless there is one placement for each axis.

    num_dims: of the tensor, where it is known. Negative dims then count from its end, and a dim
    that it does not have is a ValueError.
    """
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
    dim = getattr(placement, "dim", None)
    if dim is None:
        return placement
    if not -num_dims <= dim < num_dims:
        raise ValueError(f"{placement} of a tensor with {num_dims} dims: expected a dim below it")
    return Shard(dim + num_dims) if dim < 0 else placement


def sharding_number(mesh, placements):
    """The number of a sharding, defined on the workers when it is new."""
    placements = check_placements(mesh, placements)
    number_of_mesh = mesh_number(mesh)
    packed = tuple(pack(placements))
    key = (number_of_mesh, packed)
    number = _shardings.get(key)
    if number is None:
        # The one that every worker has whole is always there: tensors can be laid out so.
        if not all(isinstance(placement, Replicate) for placement in placements):
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
    mesh, placements = _sharding_of[number]
    return list(mesh.mesh.shape), pack(placements)


def forget_all():
    """The workers are gone, and with them what the numbers mean."""
    for table in (_meshes, _met, _mesh_of, _shardings, _sharding_of):
        table.clear()
    _sharding.forget_all()  # else the next workers' mesh 1 would be taken for this one
