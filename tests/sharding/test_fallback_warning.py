"""Calls that gather their inputs are told of at the user's line."""

import warnings

import pytest
import torch

import dtorch_mpi as dt

MESH = (2,)


def inverted(mesh, size):
    matrix = torch.eye(size) * 2
    return torch.linalg.inv(dt.distribute_tensor(matrix, mesh, [dt.Shard(0)]))  # here


def here():
    with open(__file__) as file:
        return next(n for n, line in enumerate(file, 1) if line.endswith("# here\n"))


def test_once_for_a_line(mesh):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        first = inverted(mesh, 4)
        inverted(mesh, 6)  # another plan, and the same line
    (warning,) = caught
    assert warning.category is dt.FallbackWarning
    assert (warning.filename, warning.lineno) == (__file__, here())
    assert "linalg_inv_ex" in str(warning.message)
    torch.testing.assert_close(first.cpu(), torch.eye(4) / 2)


def test_filters_are_python_s_own(mesh):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", dt.FallbackWarning)
        inverted(mesh, 8)
    assert not caught
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.FallbackWarning)
        with pytest.raises(dt.FallbackWarning):
            inverted(mesh, 10)


def test_nothing_is_said_where_nothing_is_gathered(mesh):
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.FallbackWarning)
        cut = dt.distribute_tensor(torch.ones(4, 4), mesh, [dt.Shard(0)])
        (cut @ cut.mT + cut).sum().cpu()
        dt.distribute_tensor(torch.eye(3), mesh, [dt.Replicate()]).inverse().cpu()
