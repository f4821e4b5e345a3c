"""Convolution, pooling, resampling and padding: images of a batch, channels of an image."""

import torch

from dtorch_mpi.sharding.formulas import WHOLE, by_formula, labelled_rules
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rule_table import register, register_formulas, register_function

aten = torch.ops.aten


def _each(name, ranks, formula):
    """The operators of a family by the number of spatial dims, which ``#`` stands for."""
    found = {}
    for rank in ranks:
        packet = getattr(aten, name.format(rank), None)
        if packet is not None:
            found[packet.default] = formula.replace("#", "_" * rank)
    return found


_ALL = (1, 2, 3)
for _name, _formula in (
    ("avg_pool{}d", "...# -> ...#"),
    ("avg_pool{}d_backward", "...#, ...# -> ...#"),
    ("_adaptive_avg_pool{}d", "...# -> ...#"),
    ("_adaptive_avg_pool{}d_backward", "...#, ...# -> ...#"),
    ("adaptive_max_pool{}d", "...# -> ...#, ...#"),
    ("adaptive_max_pool{}d_backward", "...#, ...#, ...# -> ...#"),
    ("max_pool{}d_with_indices", "...# -> ...#, ...#"),
    ("max_pool{}d_with_indices_backward", "...#, ...#, ...# -> ...#"),
    ("max_unpool{}d", "...#, ...# -> ...#"),
    ("reflection_pad{}d", "...# -> ...#"),
    ("reflection_pad{}d_backward", "...#, ...# -> ...#"),
    ("replication_pad{}d", "...# -> ...#"),
    ("replication_pad{}d_backward", "...#, ...# -> ...#"),
    ("upsample_nearest{}d", "...# -> ...#"),
    ("_upsample_nearest_exact{}d", "...# -> ...#"),
    ("upsample_linear{}d", "...# -> ...#"),
    ("upsample_bilinear{}d", "...# -> ...#"),
    ("upsample_trilinear{}d", "...# -> ...#"),
    ("upsample_bicubic{}d", "...# -> ...#"),
    ("_upsample_bilinear{}d_aa", "...# -> ...#"),
    ("_upsample_bicubic{}d_aa", "...# -> ...#"),
    ("_upsample_lanczos{}d_aa", "...# -> ...#"),
):
    # An image without channels is refused where an empty batch is not.
    register_formulas(_each(_name, _ALL, _formula), empty=False)
register_formulas({
    aten.max_pool3d_with_indices.default: "...___ -> ...___, ...___",
    aten.adaptive_avg_pool1d.default: "..._ -> ..._",
    aten.grid_sampler_2d: "nc__, nhw_ -> nchw",
    aten.grid_sampler_3d: "nc___, nhwd_ -> nchwd",
    aten.grid_sampler_2d_backward: "nchw, nc__, nhw_ -> nc__, nhw_ | chw",
    aten.grid_sampler_3d_backward: "nchwd, nc___, nhwd_ -> nc___, nhwd_ | chwd",
    aten.channel_shuffle: "n_... -> n_...",
})


def _average_pool(rank):
    """Dims along which a window is one element are as free as a batch's."""

    def at(values, place):
        return values[place] if len(values) > 1 else values[0]

    def rules(args, kwargs, outputs):
        meta, kernel = args[0].meta, args[1]
        stride = args[2] if len(args) > 2 and args[2] else kernel
        padding = args[3] if len(args) > 3 else [0]
        first = meta.ndim - rank
        is_free = [
            d < first
            or (at(kernel, d - first), at(stride, d - first), at(padding, d - first)) == (1, 1, 0)
            for d in range(meta.ndim)
        ]
        labels = [d if free else WHOLE for d, free in enumerate(is_free)]
        return labelled_rules([(meta, labels)], [(outputs[0], labels)])

    return rules


for _rank, _operator in (2, aten.avg_pool2d.default), (3, aten.avg_pool3d.default):
    register(_operator, empty=False)(_average_pool(_rank))


@register_function(aten.im2col)
def _im2col(args, kwargs, outputs):
    return "n___ -> n__" if args[0].meta.ndim == 4 else "___ -> __"


@register_function(aten.col2im)
def _col2im(args, kwargs, outputs):
    return "n__ -> n___" if args[0].meta.ndim == 3 else "__ -> ___"


@register(aten.constant_pad_nd)
def _pad(args, kwargs, outputs):
    meta, pad = args[0].meta, args[1]
    labels = [
        WHOLE if any(pad[2 * (meta.ndim - 1 - d) : 2 * (meta.ndim - d)]) else d
        for d in range(meta.ndim)
    ]
    return labelled_rules([(meta, labels)], [(outputs[0], labels)])


register(aten.pixel_shuffle, aten.pixel_unshuffle, empty=False)(
    by_formula(aten.pixel_shuffle.default, "...___ -> ...___")
)


def _convolution_terms(args):
    """The terms of input, weight and output; channels of several groups stay together."""
    is_transposed, groups = args[-3], args[-1]
    if groups != 1:
        return "n_*", "__*", "n_*", "_", ""
    return "nc*", "co*" if is_transposed else "oc*", "no*", "o", "c"


@register(aten.convolution, adds=True, empty=False)
def _convolution(args, kwargs, outputs):
    given, weight, made, bias, summed = _convolution_terms(args)
    tensors = [v.meta for v in args[:3] if isinstance(v, ShardedMeta)]
    return _rules_of(tensors, (given, weight, bias), outputs, (made,), summed, addends=(2,))


@register(aten.convolution_backward, empty=False)
def _convolution_backward(args, kwargs, outputs):
    given, weight, made, bias, _ = _convolution_terms(args[:-1])
    tensors = [v.meta for v in args[:3]]
    return _rules_of(
        tensors, (made, given, weight), outputs, (given, weight, bias), "no", independent=(2,)
    )


def _rules_of(metas, terms, outputs, made_terms, summed, addends=(), independent=()):
    def labels(meta, term):
        return (*term.rstrip("*"), *[WHOLE] * (meta.ndim - len(term.rstrip("*"))))

    return labelled_rules(
        [(meta, labels(meta, term)) for meta, term in zip(metas, terms, strict=False)],
        [
            (made, () if made is None else labels(made, term))
            for made, term in zip(outputs, made_terms, strict=True)
        ],
        summed, addends, independent,
    )
