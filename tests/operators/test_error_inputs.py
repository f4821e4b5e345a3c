"""What PyTorch's operator database knows to be mistakes is told at the user's line, in its own
words."""

from collections import Counter

import pytest
import torch

import dtorch_mpi as dt

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from opdb_cases import (  # noqa: E402
    attempt_error,
    cases,
    layouts_of,
    name_of,
    operators,
    placed,
    placing_on,
    settle,
)

# An index or a value that is wrong in itself is seen by the worker that has it, while the user's
# program has gone on: the error comes with the next read, and names the line.
BY_VALUE = {"gather", "scatter", "scatter_add", "masked_fill", "multinomial"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout, shape", [
    ("mesh", (2, 2)), pytest.param("device", None, marks=pytest.mark.sweep),
])  # fmt: skip
def test_mistakes_of_the_database(layout, shape):
    dt.shutdown()
    dt.init(workers=4 if shape else 1)
    place = placing_on(shape and dt.init_device_mesh(shape))
    counts, missed = Counter(), []
    for op in operators(torch.float32, "errors"):
        for sample, expected, _ in cases(op, torch.float32, "errors", None):
            for row in layouts_of(sample, layout):
                outcome = attempt_error(op, expected, placed(sample, row, place, "dtorch"), settle)
                counts[outcome.kind] += 1
                if outcome.kind == "error" or outcome.kind == "late" and op.name not in BY_VALUE:
                    missed.append(f"{name_of(op)}: {outcome.detail}")
    dt.shutdown()
    assert not missed, "\n".join(missed)
    assert counts["right"] >= 0.9 * counts.total(), counts


SCALARS = [
    lambda x, s: x + s,
    lambda x, s: s * x,
    lambda x, s: x.add_(s),
    lambda x, s: torch.where(x > 0, x, s),
    lambda x, s: torch.clamp(x, max=s),
    lambda x, s: x.pow(s),
    lambda x, s: x == s,
    lambda x, s: x.masked_fill(x > 2, s),
    lambda x, s: torch.addcmul(x, x, x, value=s.item()),
    lambda x, s: x.lerp(x + 1, s),
    lambda x, s: x.fill_(s),
    lambda x, s: x.__setitem__(0, s),
]


@pytest.mark.parametrize("placement", [dt.Shard(0), dt.Shard(1), dt.Replicate()])
@pytest.mark.parametrize("workers", [3], indirect=True)
def test_plain_scalars_are_taken(placement, workers):
    mesh = dt.init_device_mesh((3,))
    for number in (torch.tensor(2.0), torch.tensor(3), torch.tensor(1.5, dtype=torch.float64)):
        for call in SCALARS:
            expected = torch.arange(12.0).view(4, 3)
            found = dt.distribute_tensor(expected, mesh, [placement])
            one, other = call(expected, number), call(found, number)
            if one is None:
                one, other = expected, found
            assert other.dtype == one.dtype
            torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("workers", [4], indirect=True)
def test_other_plain_tensors_and_other_meshes_are_refused(workers):
    mesh, other_mesh = dt.init_device_mesh((4,)), dt.init_device_mesh((2, 2))
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [dt.Shard(0)])
    plain = torch.ones(4, 4)
    for call in (lambda: x + plain, lambda: plain @ x, lambda: torch.cat([x, plain]),
                 lambda: x.mul_(plain), lambda: torch.where(x > 0, x, plain)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
    y = dt.distribute_tensor(torch.ones(4, 4), other_mesh, [dt.Shard(0), dt.Shard(1)])
    for call in (lambda: x + y, lambda: x @ y, lambda: torch.cat([x, y]), lambda: x.copy_(y)):
        with pytest.raises(ValueError, match=r"different meshes.*to_mesh"):
            call()
