"""Loading: which tensor of a checkpoint goes where, on whatever mesh there is now."""

import json
import os
from collections.abc import Hashable

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..mesh import check_mesh
from ..sharding.plan import Plan, check_plan
from . import index, manifest
from .errors import CheckpointError
from .folder import STATE, resolve
from .source import Source
from .tree import decode, is_stateful, joined, opened, state_of


def load(path: str | os.PathLike, state: dict | None = None, *, mesh: DeviceMesh | None = None,
         placements: Plan | None = None, device: torch.device | str | None = None,
         only: Hashable | None = None, strict: bool = True, verify: bool = True) -> dict:
    """Load a checkpoint, into `state` or as a new one; returns the state.

        state = {"model": model, "optimizer": optimizer, "step": 0}
        dt.checkpoint.load("checkpoints", state)
        step = state["step"]

    path (str or os.PathLike): a checkpoint's folder, or the one they are kept in, for the newest.
    It may have been saved with another number of workers and other placements; each worker reads
    its own part only.

    state (dict): as for `save`. Tensors are filled in place and keep their placements. Objects with
    load_state_dict() have theirs called; what an optimizer does not have yet is made like the
    parameters it belongs to. Other values are replaced in the dicts and lists. strict: whether
    keys of dicts that only one side has are an error; else they are left as they are.

    Without `state`, what was on the workers comes back there: on `mesh` (DeviceMesh), placed by
    `placements`, {pattern of names: placements} as for `dt.distribute_module`, names as in
    "model/0.weight"; what none matches is cut along the dims that it was cut along, if that mesh
    had as many axes, else replicated. Without `mesh` it is replicated on all workers. What was a
    CPU tensor is one.
    device (torch.device or str): load everything there, such as "cpu", in this process and without
    workers.

    only: a key of the state; nothing else is loaded.

    verify (bool): compare the checksums of all files first, each of which one worker reads. Sizes
    are compared in any case.

    Nothing in a checkpoint is executed. Raises CheckpointError, naming the file, for what is no
    checkpoint or a damaged one, before anything is changed; ValueError for a state that it does
    not fit, and for arguments that exclude each other.
    """
    if state is not None and not (mesh is placements is device is None):
        raise ValueError("got state together with mesh, placements or device: tensors of a state "
                         "are filled as they lie; leave out one or the other")
    if device is not None and not (mesh is placements is None):
        raise ValueError(f"got device {device!r} together with a mesh or placements")
    if placements is not None and mesh is None:
        raise ValueError(f"got placements {placements} without a mesh: give mesh too")
    if mesh is not None:
        check_mesh(mesh)
    folder = resolve(path)
    files = manifest.read(folder)
    for name in (STATE, index.INDEX):
        if name not in files:
            raise CheckpointError(f"{folder / manifest.MANIFEST} names no {name}: it is damaged")
    manifest.check_sizes(folder, files)
    manifest.check_content(folder, STATE, files[STATE])
    if verify:
        manifest.check_content(folder, index.INDEX, files[index.INDEX])
    saved = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if only is not None:
        saved["state"] = _only(only, saved["state"], folder)
    with Source(folder, files, saved["sharded_dims"], verify) as source:
        source.place_new(mesh, placements or {}, device)
        if state is None:
            names = []
            decode(saved["state"], names.append)
            check_plan(names, placements or {})
            finish = _all_new(saved["state"], source)
        else:
            finish = _Matching(source, strict).matched(state, saved["state"], "")
        source.check()
        with torch.no_grad():
            return finish()


def _only(key, node, folder):
    kind, content = opened(node)
    if kind != "dict" or key not in content:
        found = sorted(map(str, content)) if kind == "dict" else _said(node)
        raise KeyError(f"no {key!r} in {folder}: the state has {found}")
    return {"$dict": [[key, content[key]]]}


def _all_new(node, source):
    made = {}
    decode(node, lambda name: made.setdefault(name, source.new(name)))
    return lambda: decode(node, lambda name: made[name]())


class _Matching:
    """Finds what goes where. Its methods return functions that do it, once all has been checked.

    place: the keys on the way to a value, for errors.
    """

    def __init__(self, source, strict):
        self._source, self._strict = source, strict

    def matched(self, target, node, place):
        """The target's own structure, with values from the checkpoint."""
        if is_stateful(target):
            return self._stateful(target, node, place)
        kind, content = opened(node)
        if isinstance(target, torch.Tensor):
            if kind != "tensor":
                raise ValueError(f"{place}: the checkpoint has {_said(node)}, the state a tensor")
            sizes = self._source.sizes(content)
            if sizes != tuple(target.shape):
                raise ValueError(
                    f"{place}: the checkpoint has a tensor of shape {sizes}, the state one of "
                    f"{tuple(target.shape)}"
                )
            return self._source.fill(target, content)
        if isinstance(target, dict):
            return self._into(target, self._pairs(target, kind, content, node, place), place)
        if isinstance(target, (list, tuple)):
            if kind not in ("list", "tuple") or len(content) != len(target):
                raise ValueError(
                    f"{place}: the checkpoint has {_said(node)}, the state a "
                    f"{type(target).__name__} of {len(target)}"
                )
            finish = self._into(target if isinstance(target, list) else list(target),
                                list(zip(range(len(target)), target, content, strict=True)), place)
            return finish if isinstance(target, list) else lambda: tuple(finish())
        return _all_new(node, self._source)

    def _pairs(self, target, kind, content, node, place):
        """[(key, value in the state, node)] of the keys that both sides have."""
        if kind != "dict":
            raise ValueError(f"{place}: the checkpoint has {_said(node)}, the state a dict")
        missing = [key for key in target if key not in content]
        unexpected = [key for key in content if key not in target]
        if self._strict and (missing or unexpected):
            raise ValueError(
                f"{place or 'the state'}: the checkpoint lacks {missing or 'nothing'} and has "
                f"{unexpected or 'nothing'} that is not in the state. Give a module or an "
                "optimizer itself in place of its state_dict(), or strict=False to load what both "
                "have"
            )
        return [(key, target[key], content[key]) for key in target if key in content]

    def _into(self, target, pairs, place):
        parts = [(key, self.matched(old, node, joined(place, key))) for key, old, node in pairs]

        def finish():
            for key, part in parts:
                target[key] = part()
            return target

        return finish

    def _stateful(self, target, node, place):
        own = state_of(target)
        if isinstance(target, torch.optim.Optimizer):
            made = self._of_optimizer(target, own, node)
        else:
            made = self._merged(own, node, None)

        def finish():
            target.load_state_dict(made())
            return target

        return finish

    def _of_optimizer(self, optimizer, own, node):
        kind, content = opened(node)
        if kind != "dict" or "state" not in content:
            return self._merged(own, node, None)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        _, states = opened(content["state"])
        parts = {
            number: self._merged(own["state"].get(number), state,
                                 parameters[number] if number in range(len(parameters)) else None)
            for number, state in states.items()
        }
        rest = {key: self._merged(own.get(key), item, None)
                for key, item in content.items() if key != "state"}  # fmt: skip
        return lambda: {"state": {number: part() for number, part in parts.items()},
                        **{key: part() for key, part in rest.items()}}

    def _merged(self, own, node, like):
        """The checkpoint's structure, with tensors that are there already filled in place."""
        kind, content = opened(node)
        if kind == "tensor":
            if isinstance(own, torch.Tensor) and self._source.sizes(content) == tuple(own.shape):
                return self._source.fill(own, content)
            return self._source.new(content, like)
        if kind == "dict":
            owned = own if isinstance(own, dict) else {}
            parts = {k: self._merged(owned.get(k), item, like) for k, item in content.items()}
            return lambda: {key: part() for key, part in parts.items()}
        if kind in ("list", "tuple"):
            owned = own if isinstance(own, (list, tuple)) and len(own) == len(content) else (
                [None] * len(content))  # fmt: skip
            items = [self._merged(o, item, like) for o, item in zip(owned, content, strict=True)]
            join = list if kind == "list" else tuple
            return lambda: join(item() for item in items)
        return lambda: content


def _said(node):
    kind, content = opened(node)
    if kind == "value":
        return f"a {type(content).__name__}"
    return f"a {kind}" + (f" of {len(content)}" if kind in ("list", "tuple") else "")
