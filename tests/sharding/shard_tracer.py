"""Running a program on simulated workers, operator by operator, beside the program itself.

Every tensor of the program has shards, one a worker. Each operator is decided by the
propagator and run on the shards; what they give is compared with the program's own value at
once, so that a wrong decision is found where it is made.
"""

import itertools
from dataclasses import dataclass

import torch
from simulate import to_meta
from torch.distributed.tensor import Partial, Replicate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.operator_facts import facts_of
from dtorch_mpi.sharding.placements import pack
from dtorch_mpi.sharding.propagator import propagate


@dataclass
class Laid:
    placements: tuple
    shards: list


@dataclass(frozen=True)
class Move:
    """One redistribution: before which operator, of what, from where to where."""

    op: str
    sizes: tuple
    before: tuple
    after: tuple


class ShardTracer(TorchDispatchMode):
    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        self.coordinates = list(itertools.product(*(range(n) for n in mesh.shape)))
        self.whole = (Replicate(),) * mesh.ndim
        self.laid = WeakTensorKeyDictionary()
        self.moves: list[Move] = []
        self.fallbacks: list[tuple[str, str]] = []
        self.num_operators = 0

    def place(self, tensor, placements):
        placements = tuple(placements)
        shards = [
            _sharding.local_slice(tensor.detach(), self.mesh.shape, pack(placements), c)
            for c in self.coordinates
        ]
        self.laid[tensor] = Laid(placements, shards)

    def assembled(self, laid, sizes):
        return _sharding.assemble(laid.shards, sizes, self.mesh.shape, pack(laid.placements))

    def lay_gradients(self, model, layout):
        """Bring each gradient to its parameter's placements as soon as it is complete."""

        def bring(parameter, name):
            laid = self.laid[parameter.grad]
            placements = tuple(layout(name))
            shards = self.redistributed("gradient", parameter.grad, laid, placements)
            laid.placements, laid.shards = placements, shards

        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: bring(p, name))

    def redistributed(self, op, tensor, laid, placements):
        if laid.placements == placements:
            return laid.shards
        self.moves.append(Move(str(op), tuple(tensor.shape), laid.placements, placements))
        full = self.assembled(laid, tensor.shape)
        shards = [
            _sharding.local_slice(full, self.mesh.shape, pack(placements), c)
            for c in self.coordinates
        ]
        if any(isinstance(p, Partial) for p in laid.placements):
            # A sum that was worked out once is not worked out again.
            laid.placements, laid.shards = placements, shards
        return shards

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.num_operators += 1
        given = [v for v in tree_leaves([*args, *kwargs.values()]) if isinstance(v, torch.Tensor)]
        for tensor in given:
            if tensor not in self.laid and tensor.ndim:
                self.place(tensor, self.whole)
        metas = {
            id(t): ShardedMeta(to_meta(t), self.mesh, self.laid[t].placements)
            for t in given
            if t in self.laid
        }
        shown_args, shown_kwargs = tree_map(lambda v: metas.get(id(v), v), (args, kwargs))
        if op is torch.ops.aten._local_scalar_dense.default:
            return op(*args, **kwargs)
        # The results' metadata before the values, as the client has it.
        meta_args, meta_kwargs = tree_map(
            lambda v: metas[id(v)].meta if id(v) in metas else v, (args, kwargs)
        )
        if metas:
            outputs = tree_leaves(op(*meta_args, **meta_kwargs))
            outputs = [o if isinstance(o, torch.Tensor) else None for o in outputs]
            outputs = outputs if op._schema.returns else []
            decision = propagate(op, shown_args, shown_kwargs, outputs)
            if decision.decomposition is not None:
                with self:
                    return decision.decomposition(*args, **kwargs)
            if decision.fallback:
                self.fallbacks.append((str(op), decision.reason))
            shards, local_inputs, distributed = self.run_shards(op, args, kwargs, decision, outputs)
        result = op(*args, **kwargs)
        if not metas:
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and tensor not in self.laid:
                    self.place(tensor, self.whole)
            return result
        self.keep(op, decision, result, shards)
        for index, placements in decision.restore.items():
            laid = Laid(decision.inputs[index], [w[index] for w in local_inputs])
            full = self.assembled(laid, distributed[index].shape)
            self.moves.append(
                Move(str(op), tuple(full.shape), decision.inputs[index], placements)
            )
            kept = self.laid[distributed[index]]
            for shard, c in zip(kept.shards, self.coordinates, strict=True):
                shard.copy_(_sharding.local_slice(full, self.mesh.shape, pack(placements), c))
        for tensor in distributed:
            self.compare(op, tensor)
        return result

    def run_shards(self, op, args, kwargs, decision, outputs):
        distributed = [
            v
            for v in tree_leaves([*args, *kwargs.values()])
            if isinstance(v, torch.Tensor) and v in self.laid
        ]
        assert len(distributed) == len(decision.inputs)
        by_input = [
            self.redistributed(op, t, self.laid[t], p)
            for t, p in zip(distributed, decision.inputs, strict=True)
        ]
        shards, local_inputs = [], []
        for worker, coordinate in enumerate(self.coordinates):
            mine = [shards_of[worker] for shards_of in by_input]
            supply = iter(mine)
            local_args, local_kwargs = tree_map(
                lambda v, supply=supply: (
                    next(supply) if isinstance(v, torch.Tensor) and v in self.laid else v
                ),
                (list(args), kwargs),
            )
            for position, output in decision.local_sizes.items():
                local_args[position] = _sharding.local_sizes(
                    outputs[output].shape, self.mesh.shape, pack(decision.outputs[output]),
                    coordinate,
                )
            for position, output in decision.local_strides.items():
                local_args[position] = _sharding.local_strides(
                    outputs[output].stride(), local_args[facts_of(op).size_position]
                )
            shards.append(tree_leaves(op(*local_args, **local_kwargs)))
            local_inputs.append(mine)
        return shards, local_inputs, distributed

    def keep(self, op, decision, result, shards):
        for index, tensor in enumerate(tree_leaves(result)):
            if not isinstance(tensor, torch.Tensor) or not decision.outputs:
                continue
            if tensor not in self.laid:
                self.laid[tensor] = Laid(decision.outputs[index], [s[index] for s in shards])
            self.compare(op, tensor)

    def compare(self, op, tensor):
        got = self.assembled(self.laid[tensor], tensor.shape)
        torch.testing.assert_close(got, tensor.detach(), msg=lambda m: f"{op}: {m}")
