"""Has chains of pointwise operators done by one kernel each, once it is compiled."""

from ..fusion.spec import number_of, packed
from . import graph_pass, list_groups, pointwise_groups


@graph_pass
def fusion(graph):
    """Put one call in the place of connected pointwise operators on tensors of one shape, and of
    those in a row on lists of tensors, as optimizers issue them.

    What only they need is never written to memory. The bits are the same: see fusion/compiler. A
    kernel that workers don't have yet is asked for, and the window stays as it is until then.
    """
    if graph.kernels is None:
        return
    found = [pointwise_groups.Fused(graph, group) for group in pointwise_groups.find(graph)]
    found += [list_groups.FusedLists(graph, group) for group in list_groups.find(graph)]
    for fused in found:
        if fused.spec is not None:
            text = packed(fused.spec)
            if graph.kernels.are_there(text):
                fused.put(number_of(text))
