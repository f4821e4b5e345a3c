"""Has chains of pointwise operators and reductions done by one kernel each, once it is compiled."""

from ..fusion.spec import number_of, packed
from . import graph_pass, list_groups, pointwise_groups, reduction_groups
from .facts import keeps_sums


@graph_pass
def fusion(graph):
    """Put one call in the place of connected pointwise operators on tensors of one shape, with
    reductions of their last dims, and of those in a row on lists of tensors or in place, as
    optimizers issue them.

    What only they need is never written to memory. The bits are the same, but for sums within a
    row: see fusion/compiler. A kernel that workers don't have yet is asked for, and the window
    stays as it is until then. On GPUs lists are left to PyTorch's own kernels, which take many
    tensors at a time.
    """
    if graph.kernels is None or not graph.kernels.are_wanted:
        return
    left_out = set()

    def use(fused):
        if graph.kernels.on_gpus and not fused.inputs:
            return  # it would not know where to put what it makes
        text = packed(fused.spec)
        if graph.kernels.are_there(text):
            fused.put(number_of(text))
        elif not graph.kernels.are_settled([text]):
            left_out.update(id(part.node) for part in fused.group.parts)

    # What is in several kinds of group goes to the first.
    for group in () if keeps_sums() else reduction_groups.find(graph):
        use(reduction_groups.FusedRows(graph, group))
    for group in () if graph.kernels.on_gpus else list_groups.find(graph):
        fused = list_groups.FusedLists(graph, group)
        if fused.spec is not None and left_out.isdisjoint(id(part.node) for part in group.parts):
            use(fused)
    for group in pointwise_groups.find(graph, left_out=left_out):
        use(pointwise_groups.Fused(graph, group))
