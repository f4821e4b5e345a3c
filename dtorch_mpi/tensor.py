"""Distributed tensors: placing, reading, and the methods that torch.Tensor gains."""

import torch
from torch.distributed.device_mesh import DeviceMesh

from . import _core, _sharding
from .engine import issuing_to
from .mesh import (
    GivenPlacements,
    check_placements,
    has_partial,
    is_whole,
    mesh_number,
    packed_of,
    sharding_number,
    sharding_of,
    whole_mesh,
    without_partial,
)
from .sharding.plan import Plan, check_plan, placements_for


def is_dtorch(tensor):
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "dtorch"


def placements(tensor):
    """One placement for each axis of the tensor's mesh; () for the default, replicated."""
    return sharding_of(_core.sharding(tensor))[1] or ()


def device_mesh(tensor):
    """The tensor's mesh; None for the default, all workers."""
    return sharding_of(_core.sharding(tensor))[0]


def distribute_tensor(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: GivenPlacements = None
) -> torch.Tensor:
    """Place a tensor on a mesh.

    tensor: on the CPU (each worker is sent its own part only) or on the dtorch device.
    placements: one for each axis; None replicates. Keeps requires_grad of a leaf.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    placements = check_placements(mesh, placements, tensor.dim())
    number = sharding_number(mesh, placements)
    if not is_dtorch(tensor):
        if has_partial(placements):
            raise ValueError("a CPU tensor can't be placed as Partial: it holds no partial sums")
        placed = _core.upload(tensor.detach(), number)
        return placed.requires_grad_(tensor.requires_grad)
    return redistribute(tensor, mesh, placements)


class _Redistribute(torch.autograd.Function):
    """The gradient comes back under the placements that the tensor had."""

    @staticmethod
    def forward(ctx, tensor, number):
        ctx.before = _core.sharding(tensor)
        return _move(tensor, number)

    @staticmethod
    def backward(ctx, grad):
        before = ctx.before
        if before and has_partial(sharding_of(before)[1]):
            # A gradient of a partial sum is needed whole by every part.
            mesh, placements = sharding_of(before)
            before = sharding_number(mesh, without_partial(placements))
        return _move(grad, before), None


def _move(tensor, number):
    tensor = tensor.detach()
    before = _core.sharding(tensor)
    if before == number:
        return tensor
    if number == 0:
        mesh = sharding_of(before)[0]
        number = sharding_number(mesh if is_whole(mesh) else whole_mesh(), None)
        if number == before:
            return tensor
    if before == 0:
        mesh, _ = sharding_of(number)
        before = sharding_number(mesh, None)
    return _core.redistribute(tensor, before, number)


def redistribute(tensor, mesh=None, placements=None):
    """The same value under other placements; differentiable.

    mesh: the tensor's own by default; another must have the same workers.
    """
    mesh = mesh if mesh is not None else device_mesh(_checked(tensor))
    if mesh is None:
        raise ValueError("this tensor has no mesh yet: say redistribute(mesh, placements)")
    old = device_mesh(_checked(tensor))
    if old is not None and mesh_number(old) != mesh_number(mesh):
        raise ValueError(
            f"the tensor lies on {old}, and {mesh} is another mesh: move it there with "
            "to_mesh(mesh, placements)"
        )
    placements = check_placements(mesh, placements, tensor.dim())
    return _Redistribute.apply(tensor, sharding_number(mesh, placements))


def to_mesh(tensor, mesh, placements=None):
    """The same value on another mesh; differentiable.

    Its parts go from worker to worker, and those of neither mesh take no part, so that what other
    workers do meanwhile is not held up. placements: on the new mesh; by default replicated, or as
    the tensor has them where both meshes have as many axes. Raises ValueError for Partial.
    """
    old, held = sharding_of(_core.sharding(_checked(tensor)))
    if placements is None and held and len(held) == mesh.ndim:
        placements = without_partial(held)
    placements = check_placements(mesh, placements, tensor.dim())
    if old is None or mesh_number(old) == mesh_number(mesh):
        return redistribute(tensor, mesh, placements)
    if has_partial(placements):
        raise ValueError(f"to_mesh(mesh, {placements}): a tensor can't get to another mesh as "
                         "partial sums: go there replicated or sharded")
    if has_partial(held):
        tensor = redistribute(tensor, old, without_partial(held))
    return _Redistribute.apply(tensor, sharding_number(mesh, placements))


def request(tensor):
    """Ask for a tensor's full value; returns a TensorFuture."""
    from .future import TensorFuture
    from .runtime import runtime

    running = runtime()
    number = _core.sharding(tensor)
    mesh, held = sharding_of(number)
    if held and has_partial(held):
        with issuing_to(_core.graph_of(tensor)):
            tensor = _move(tensor, sharding_number(mesh, without_partial(held)))
        number = _core.sharding(tensor)
    sizes = list(tensor.shape)
    workers = None if mesh is None else mesh.mesh.flatten().tolist()
    replies, promise = running.expect_value(workers, tensor, number)
    running.flush(_core.request_value(tensor, promise, number))

    def assemble(values):
        if number == 0:
            return values[0].view(sizes) if values[0] is not None else None
        shape, packed = packed_of(number)
        return _sharding.assemble([values[w] for w in workers], sizes, shape, packed)

    return TensorFuture(running, replies, assemble)


def read(tensor):
    """The full value as a CPU tensor; waits."""
    return request(tensor).get()


def to_torch_async(tensor):
    """A future of the full value; does not wait."""
    return request(_checked(tensor))


def to_torch(tensor):
    """The full value as a CPU tensor without autograd history, whatever the placement."""
    return to_torch_async(tensor).get()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same value, replicated on the tensor's mesh; differentiable."""
    if device_mesh(_checked(tensor)) is None:
        return tensor
    return redistribute(tensor, placements=None)


def local_shards(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Each worker's part as a CPU tensor, by row-major mesh coordinate."""
    value = read(_checked(tensor))
    number = _core.sharding(tensor)
    if number == 0:
        from .runtime import runtime

        return [value.clone() for _ in range(runtime().num_workers)]
    shape, packed = packed_of(number)
    coordinates = torch.cartesian_prod(*[torch.arange(n) for n in shape]).view(-1, len(shape))
    return [
        _sharding.local_slice(value, shape, packed, coordinate.tolist())
        for coordinate in coordinates
    ]


def _checked(tensor):
    if not is_dtorch(tensor):
        where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"expected a tensor on the dtorch device, got {where}")
    return tensor


def distribute_module(
    module: torch.nn.Module, mesh: DeviceMesh, plan: Plan | None = None
) -> torch.nn.Module:
    """Place a module's parameters and buffers on a mesh, in place; returns the module.

    plan: {name pattern: placements}, patterns as in fnmatch on qualified parameter names; what
    none matches is replicated. Parameters stay the same objects, so tied weights and
    optimizers made before keep working. Raises ValueError, before anything is placed, for a
    pattern that matches nothing and for a placement along a dim that a parameter does not have.
    """
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in module.named_buffers(remove_duplicate=False)]
    check_plan(names, plan or {})
    tensors = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    chosen = {}
    for name in names:
        placements = placements_for(name, plan or {}, mesh)
        try:
            chosen[name] = check_placements(mesh, placements, tensors[name].dim())
        except ValueError as error:
            raise ValueError(
                f"{name}: {error}. Give it others by a pattern with more of its name: that one "
                "holds"
            ) from None
    done = {}
    with torch.no_grad():
        for name in names:
            tensor = tensors[name]
            if id(tensor) in done:
                if done[id(tensor)] != chosen[name]:
                    raise ValueError(
                        f"{name} is tied to another parameter that the plan places as "
                        f"{done[id(tensor)]}, and asks for {chosen[name]}: give both the same"
                    )
                continue
            done[id(tensor)] = chosen[name]
            placed = distribute_tensor(tensor.detach(), mesh, chosen[name])
            tensor.data = placed
    return module


def add_methods():
    """What torch.Tensor gains on the dtorch device."""
    torch.Tensor.to_torch = to_torch
    torch.Tensor.to_torch_async = to_torch_async
    torch.Tensor.redistribute = redistribute
    torch.Tensor.to_mesh = to_mesh
    torch.Tensor.placements = property(placements)
    torch.Tensor.device_mesh = property(device_mesh)
