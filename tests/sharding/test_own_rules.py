"""Rules of our own, on every layout of small tensors, run shard by shard against the whole."""

import itertools

import pytest
import torch
from simulate import Placed, check, make_mesh
from torch.distributed.tensor import Replicate, Shard

aten = torch.ops.aten
MESHES = [make_mesh(2), make_mesh(3), make_mesh(2, 2)]


@pytest.fixture(params=MESHES, ids=lambda m: str(tuple(m.shape)))
def mesh(request):
    return request.param


def randn(*sizes):
    torch.manual_seed(sum(sizes))
    return torch.randn(sizes, dtype=torch.float64)


def spd(*sizes):
    made = randn(*sizes)
    return made @ made.mT + 3 * torch.eye(sizes[-1], dtype=torch.float64)


def index(high, *sizes):
    torch.manual_seed(high)
    return torch.randint(0, high, sizes)


def layouts(mesh, ndim):
    return itertools.product([Replicate(), *map(Shard, range(ndim))], repeat=mesh.ndim)


def rows(mesh, tensors):
    """Layouts of all the tensors: all for one, a slanted choice for more."""
    options = list(itertools.product(*(layouts(mesh, tensor.ndim) for tensor in tensors)))
    return options[:: max(1, len(options) // 40)]


CASES = {
    "sort": (aten.sort.default, (randn(5, 4, 3), 1)),
    "topk": (aten.topk.default, (randn(5, 4), 2, 0)),
    "kthvalue": (aten.kthvalue.default, (randn(5, 4), 2, 1, True)),
    "cumsum": (aten.cumsum.default, (randn(5, 4), 0)),
    "logcumsumexp": (aten.logcumsumexp.default, (randn(5, 4), 1)),
    "flip": (aten.flip.default, (randn(5, 4, 2), [0, -1])),
    "roll": (aten.roll.default, (randn(5, 4), [2], [1])),
    "roll_flat": (aten.roll.default, (randn(5, 4), [2])),
    "renorm": (aten.renorm.default, (randn(5, 4), 2, 0, 1.0)),
    "unfold": (aten.unfold.default, (randn(5, 4), 1, 2, 1)),
    "glu": (aten.glu.default, (randn(5, 4), 1)),
    "cross": (aten.linalg_cross.default, (randn(5, 3), randn(5, 3))),
    "gather": (aten.gather.default, (randn(5, 4), 1, index(4, 5, 3))),
    "gather_fewer": (aten.gather.default, (randn(5, 4), 1, index(4, 3, 6))),
    "scatter": (aten.scatter.src, (randn(5, 4), 0, index(5, 5, 4), randn(5, 4))),
    "scatter_value": (aten.scatter.value, (randn(5, 4), 1, index(4, 5, 2), 2.0)),
    "scatter_add": (aten.scatter_add.default, (randn(5, 4), 1, index(4, 5, 6), randn(5, 6))),
    "scatter_fewer": (aten.scatter_add.default, (randn(5, 4), 1, index(4, 3, 6), randn(3, 6))),
    "index_select": (aten.index_select.default, (randn(5, 4), 1, index(4, 6))),
    "index_add": (aten.index_add.default, (randn(5, 4), 0, index(5, 6), randn(6, 4))),
    "index_copy": (aten.index_copy.default, (randn(5, 4), 1, torch.tensor([2, 0]), randn(5, 2))),
    "searchsorted": (aten.searchsorted.Tensor, (randn(5, 4).sort(1)[0], randn(5, 3))),
    "slice_scatter": (aten.slice_scatter.default, (randn(5, 4), randn(5, 2), 1, 1, 3)),
    "mv": (aten.mv.default, (randn(5, 4), randn(4))),
    "dot": (aten.dot.default, (randn(5), randn(5))),
    "addmv": (aten.addmv.default, (randn(5), randn(5, 4), randn(4))),
    "addbmm": (aten.addbmm.default, (randn(5, 3), randn(2, 5, 4), randn(2, 4, 3))),
    "addr": (aten.addr.default, (randn(5, 4), randn(5), randn(4))),
    "addr_number": (aten.addr.default, (randn(), randn(5), randn(4))),
    "addmv_one": (aten.addmv.default, (randn(1), randn(5, 4), randn(4))),
    "addbmm_row": (aten.addbmm.default, (randn(3), randn(2, 5, 4), randn(2, 4, 3))),
    "isin": (aten.isin.Tensor_Tensor, (index(9, 5), index(9, 6))),
    "gather_none": (aten.gather.default, (randn(5), 0, index(5, 0))),
    "singular_values": (aten._linalg_svd.default, (randn(5, 4, 3), False, False)),
    "nll_loss2d": (aten.nll_loss2d_forward.default,
                   (randn(5, 3, 4, 2), index(3, 5, 4, 2), None, 2, 1)),
    "nll_loss2d_none": (aten.nll_loss2d_forward.default,
                        (randn(5, 3, 4, 2), index(3, 5, 4, 2), randn(3), 0, 1)),
    "nll_loss2d_backward": (
        aten.nll_loss2d_backward.default,
        (randn(5, 4, 2), randn(5, 3, 4, 2), index(3, 5, 4, 2), None, 0, 1, randn()),
    ),
    "cdist": (aten._cdist_forward.default, (randn(5, 3), randn(4, 3), 2.0, None)),
    "inverse": (aten.linalg_inv_ex.default, (spd(5, 3, 3),)),
    "cholesky_solve": (aten.cholesky_solve.default, (randn(5, 3, 4), spd(5, 3, 3))),
    "solve": (aten._linalg_solve_ex.default, (spd(5, 3, 3), randn(5, 3, 4))),
    "solve_vectors": (aten._linalg_solve_ex.default, (spd(5, 3, 3), randn(5, 3))),
    "determinant": (aten._linalg_det.default, (spd(5, 3, 3),)),
    "trilinear": (aten._trilinear.default,
                  (randn(5, 3), randn(4, 3, 2), randn(5, 2), [1, 3], [0], [1, 2], [2, 3])),
    "convolution": (aten.convolution.default,
                    (randn(4, 3, 6), randn(5, 3, 2), randn(5), [1], [0], [1], False, [0], 1)),
    "transposed": (aten.convolution.default,
                   (randn(4, 3, 6), randn(3, 5, 2), None, [1], [0], [1], True, [0], 1)),
    "grouped": (aten.convolution.default,
                (randn(4, 4, 6), randn(4, 2, 2), None, [1], [0], [1], False, [0], 2)),
    "convolution_backward": (
        aten.convolution_backward.default,
        (randn(4, 5, 5), randn(4, 3, 6), randn(5, 3, 2), [5], [1], [0], [1], False, [0], 1,
         [True, True, True]),
    ),
    "max_pool": (aten.max_pool2d_with_indices.default, (randn(3, 5, 4, 4), [2, 2])),
    "avg_pool": (aten.avg_pool2d.default, (randn(5, 4, 4), [2, 2])),
    "avg_pool_one": (aten.avg_pool2d.default, (randn(2, 5, 4, 3), [2, 1], [1, 1])),
    "avg_pool3d": (aten.avg_pool3d.default, (randn(2, 4, 4, 3), [2, 2, 1], [2, 2, 1])),
    "reflection_pad": (aten.reflection_pad1d.default, (randn(3, 5, 4), [1, 1])),
    "pad": (aten.constant_pad_nd.default, (randn(3, 5, 4), [1, 1], 2.0)),
    "upsample": (aten.upsample_nearest2d.default, (randn(3, 5, 4, 4), [6, 6])),
    "grid_sampler": (aten.grid_sampler_2d.default,
                     (randn(3, 4, 5, 5), randn(3, 6, 2, 2), 0, 0, False)),
    "grid_backward": (aten.grid_sampler_2d_backward.default,
                      (randn(3, 4, 6, 2), randn(3, 4, 5, 5), randn(3, 6, 2, 2), 0, 0, False,
                       [True, True])),
    "pixel_shuffle": (aten.pixel_shuffle.default, (randn(5, 4, 3, 3), 2)),
    "channel_shuffle": (aten.channel_shuffle.default, (randn(5, 4, 3, 3), 2)),
    "im2col": (aten.im2col.default, (randn(3, 2, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1])),
    "split": (aten.split.Tensor, (randn(5, 4), 2, 1)),
    "unbind": (aten.unbind.int, (randn(5, 4), 1)),
    "diagonal": (aten.diagonal.default, (randn(5, 4, 4), 0, 1, 2)),
    "diag_embed": (aten.diag_embed.default, (randn(5, 4), 1)),
    "repeat": (aten.repeat.default, (randn(5, 4), [2, 1, 3])),
    "permute_copy": (aten.permute_copy.default, (randn(5, 4, 3), [2, 0, 1])),
    "chunk_cat": (aten._chunk_cat.default, ([randn(5, 4, 3), randn(5, 2, 3)], 1, 2)),
    "complex": (aten.complex.default, (randn(5, 1), randn(4))),
    "loss": (aten.mse_loss.default, (randn(5, 4), randn(5, 4), 2)),
    "loss_none": (aten.huber_loss.default, (randn(5, 4), randn(5, 4), 0, 1.0)),
    "margin": (aten.multi_margin_loss.default, (randn(5, 4), index(4, 5), 1, 1.0, None, 2)),
    "fft": (aten._fft_c2c.default, (torch.complex(randn(5, 4), randn(5, 4)), [1], 0, True)),
    "var_rows": (aten.var.correction, (randn(5, 4), [1])),
    "aminmax": (aten.aminmax.default, (randn(6, 4),)),
    "to_copy": (aten._to_copy.default, (randn(5, 4),)),
}


@pytest.mark.parametrize("case", CASES)
def test_shards_give_what_the_whole_gives(mesh, case):
    op, arguments = CASES[case]
    tensors = [
        item
        for value in arguments
        for item in (value if isinstance(value, list) else (value,))
        if isinstance(item, torch.Tensor)
    ]
    for layout in rows(mesh, tensors):
        supply = iter(layout)

        def place(value, supply=supply):
            if isinstance(value, list):
                return [place(element) for element in value]
            return Placed(value, next(supply)) if isinstance(value, torch.Tensor) else value

        check(op, [place(value) for value in arguments], mesh=mesh)
