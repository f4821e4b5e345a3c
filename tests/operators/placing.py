"""Tensors of any placement, partial sums too."""

import dtorch_mpi as dt


def placed(tensor, mesh, placements):
    whole = dt.distribute_tensor(tensor.clone(), mesh, [dt.Replicate()] * mesh.ndim)
    return whole.redistribute(placements=placements)
