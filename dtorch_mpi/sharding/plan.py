"""Which placements a plan gives each parameter: patterns of names, the most specific first."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch._C._distributed import Placement
from torch.distributed.device_mesh import DeviceMesh

Plan = Mapping[str, Placement | Sequence[Placement]]


def placements_for(name: str, plan: Plan, mesh: DeviceMesh) -> tuple[Placement, ...]:
    """The placements of the parameter ``name``, one a mesh axis.

    ``plan`` maps patterns (``*``, ``?``, ``[...]`` as in file names) to placements. Of the
    patterns that match, the one with the most literal characters holds, and among equals the
    first. A name that none matches is replicated.

    Raises ValueError where the placements are not one for each axis of ``mesh``, and
    TypeError where they are not placements.
    """
    from torch.distributed.tensor import Replicate  # see mesh.py

    matching = [pattern for pattern in plan if fnmatchcase(name, pattern)]
    if not matching:
        return (Replicate(),) * mesh.ndim
    pattern = max(matching, key=_num_literals)
    given = plan[pattern]
    placements = (given,) if isinstance(given, Placement) else tuple(given)
    for placement in placements:
        if not isinstance(placement, Placement):
            raise TypeError(
                f"plan[{pattern!r}]: expected placements such as Shard(0) or Replicate(), got "
                f"{placement!r}"
            )
    if len(placements) != mesh.ndim:
        raise ValueError(
            f"plan[{pattern!r}]: expected {mesh.ndim} placements, one for each mesh axis "
            f"{mesh.mesh_dim_names or tuple(mesh.shape)}, got {list(placements)}"
        )
    return placements


def check_plan(names: Iterable[str], plan: Plan) -> None:
    """Raise ValueError for a pattern that matches no name: it is most likely misspelt."""
    names = list(names)
    for pattern in plan:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
        raise ValueError(
            f"plan[{pattern!r}] matches no parameter. Nearest names: {', '.join(near) or 'none'}. "
            f"'*' stands for any characters, dots too"
        )


def _num_literals(pattern: str) -> int:
    literals, in_set = 0, False
    for character in pattern:
        if character == "[":
            in_set = True
        elif character == "]":
            in_set = False
        elif character not in "*?" and not in_set:
            literals += 1
    return literals
