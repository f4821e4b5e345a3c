"""PyTorch's own operator database as cases: an operator, a sample, placements of its tensors.

The oracle is plain PyTorch on the CPU. A case is right where every output and gradient has the
oracle's type, sizes and values. Random numbers are not the CPU's: a sample that draws is compared
with the same call on replicated `dtorch` tensors, bit for bit where it only draws.
"""

import copy
import itertools
import random
import warnings
from dataclasses import dataclass

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

# Their values are whatever was in memory.
UNINITIALIZED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
}
# They may draw from the generator, whose numbers on `dtorch` are not the CPU's.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "uniform", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "pca_lowrank", "svd_lowrank",
}
# Of those, the ones that compute with what they draw, in an order that placements change.
COMPUTING = {
    "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
    "pca_lowrank", "svd_lowrank",
}


# In place they change the order or the number of the dims.
MOVES_DIMS = {
    "t", "transpose", "swapaxes", "squeeze", "unsqueeze", "resize_", "resize_as_", "as_strided",
    "addbmm",  # makes room in what broadcasts
}

# Of half and bfloat16: what workers add up is rounded by each before the sum is, to 3 or 2 digits
# of the largest addend where the sum itself is small.
ROUNDED_BY_WORKER = {"dot": 5e-2, "inner": 5e-2, "vdot": 5e-2,
                     "nn.functional.multilabel_soft_margin_loss": 2e-2}
# Of the other types: singular vectors turn by rounding over the distance of the singular values.
SENSITIVE = {"pca_lowrank": 1e-3, "svd_lowrank": 1e-3}


@dataclass
class Outcome:
    """What came of one case: 'right', 'wrong', 'error' or 'refused' (the oracle raised too)."""

    kind: str
    detail: str = ""


def name_of(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def operators(dtype, kind="forward"):
    has = {
        "inplace": lambda op: op.inplace_variant is not None,
        "out": lambda op: op.supports_out,
        "errors": lambda op: op.error_inputs_func is not None,
    }.get(kind, lambda op: True)
    return [op for op in op_db if dtype in op.supported_dtypes("cpu") and has(op)]


def samples(op, dtype, count, requires_grad=False):
    """The first `count` samples, the same ones in every process."""
    torch.manual_seed(0)
    random.seed(0)
    grad = requires_grad and op.supports_autograd
    found = op.sample_inputs("cpu", dtype, requires_grad=grad)
    return list(itertools.islice(found, count))


def arguments_of(sample):
    return tree_flatten(((sample.input, *sample.args), sample.kwargs))


def placements_for_mesh(tensor):
    """The layout of a 2 x 2 mesh: matrices cut both ways, vectors one way."""
    if tensor.ndim >= 2:
        return [Shard(0), Shard(tensor.ndim - 1)]
    return [Shard(0), Replicate()] if tensor.ndim == 1 else [Replicate(), Replicate()]


def combinations(leaves, count, most, uneven):
    """Placements on one axis of `count` workers, as PyTorch's DTensorConverter has them.

    uneven: dims that the axis does not divide are cut too. At most `most`, spread evenly.
    """
    choices = []
    for tensor in leaves:
        found = [Replicate()]
        if uneven or tensor.dtype != torch.bool:
            found += [
                Shard(dim) for dim, size in enumerate(tensor.shape)
                if size > 1 and (uneven or size % count == 0)
            ]
        choices.append(found)
    total = 1
    for found in choices:
        total *= len(found)
    for index in sorted({round(k * (total - 1) / max(most - 1, 1)) for k in range(most)}):
        row = []
        for found in choices:
            index, which = divmod(index, len(found))
            row.append([found[which]])
        yield row


def is_strided(value):
    return not isinstance(value, torch.Tensor) or value.layout == torch.strided


def layouts_of(sample, layout):
    """The rows of placements, one for each tensor of the sample, that a layout tries."""
    tensors = [leaf for leaf in arguments_of(sample)[0] if isinstance(leaf, torch.Tensor)]
    if layout == "device":
        return [[None] * len(tensors)]
    if layout == "mesh":
        return [[placements_for_mesh(tensor) for tensor in tensors]]
    if layout == "each":
        return list(combinations(tensors, 4, 24, False))
    return list(combinations(tensors, 3, 6, True))


def placed(sample, row, place, device=None):
    """The sample's arguments, its tensors as `place(tensor, placements)` gives them.

    device: what a `device` argument shall be in place of the CPU.
    """
    leaves, structure = arguments_of(sample)
    supply = iter(row)

    def convert(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        made = place(leaf.detach(), next(supply))
        return made.requires_grad_() if leaf.requires_grad else made

    (positional, keywords) = tree_unflatten([convert(leaf) for leaf in leaves], structure)
    if device is not None and keywords.get("device") is not None:
        keywords["device"] = device
    return list(positional), keywords


def placing_on(mesh):
    """`place` for dtorch: copies on a mesh, or without placements where there is none.

    A row may have more placements than the mesh has axes.
    """
    import dtorch_mpi as dt  # here: DTensor's cases run without it

    def place(tensor, placements):
        if mesh is None or placements is None:
            return tensor.clone().to("dtorch")
        return dt.distribute_tensor(tensor.clone(), mesh, placements[: mesh.ndim])

    return place


def read(value):
    """`read` for dtorch."""
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def settle():
    """`settle` for dtorch."""
    import dtorch_mpi as dt

    try:
        dt.sync()
    except dt.WorkerError:
        return True
    return False


def cotangent(tensor):
    """A gradient of the output that no two elements share."""
    ramp = torch.linspace(0.5, 1.5, max(tensor.numel(), 1), dtype=torch.float64)
    return ramp[: tensor.numel()].view(tensor.shape).to(tensor.dtype)


def run(op, sample, arguments, kind, read, place=None):
    """[results] of one kind of call, as CPU tensors. kind: forward, backward, inplace, out.

    place(tensor, placements) puts a tensor where the arguments are; None leaves it on the CPU.
    """
    positional, keywords = arguments
    torch.manual_seed(1)
    random.seed(1)
    if kind == "inplace":
        # A copy, so that rules about leaves do not matter.
        written = positional[0].detach().clone()
        before = layout_of(written)
        made = op.inplace_variant(written, *positional[1:], **keywords)
        # One that turns the dims turns the placements with them.
        kept = op.name in MOVES_DIMS or layout_of(written) == before
        return [made is written, kept, read(written)]
    if kind == "out":
        return run_out(op, positional, keywords, read, place)
    made = op(*positional, **keywords)
    results = [tree_map(read, made)]
    if kind == "backward":
        outputs = [
            leaf for leaf in tree_leaves(sample.output_process_fn_grad(made))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        wanted = [
            leaf for leaf in tree_leaves((positional, keywords))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if outputs and wanted:
            given = [cotangent(out).to(out.device) for out in outputs]
            grads = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
            results.append(tree_map(read, list(grads)))
    return results


def run_out(op, positional, keywords, read, place):
    """Results written to tensors of the right size, and to ones without elements.

    The first lie as the mesh layout has them, whatever the inputs do.
    """
    with torch.no_grad():
        whole = op(*positional, **keywords)
        plain = [read(leaf) for leaf in tree_leaves(whole)]
        results = [plain]
        for fits in (True, False):
            targets = []
            for leaf in plain:
                blank = torch.zeros_like(leaf) if fits else leaf.new_empty(0)
                lies = placements_for_mesh(blank)
                targets.append(place(blank, lies) if place is not None else blank)
            before = list(map(layout_of, targets))
            given = targets[0] if isinstance(whole, torch.Tensor) else tuple(targets)
            op(*positional, **keywords, out=given)
            kept = not fits or list(map(layout_of, targets)) == before
            results.append([kept, *map(read, targets)])
    return results


def layout_of(tensor):
    """A distributed tensor's placements in words; nothing for a plain one."""
    is_plain = tensor.device.type == "cpu" and type(tensor) is torch.Tensor
    return "" if is_plain else str(tensor.placements)


def difference(expected, actual, op, values="close"):
    """What is wrong with the results, or an empty text. values: any, close or equal."""
    mine, theirs = tree_leaves(actual), tree_leaves(expected)
    if len(mine) != len(theirs):
        return f"{len(mine)} results, expected {len(theirs)}"
    for index, (found, wanted) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(wanted, torch.Tensor):
            if not isinstance(found, torch.Tensor) and not _same_number(found, wanted):
                return f"result {index} is {found!r}, expected {wanted!r}"
            continue
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return (f"result {index} is {found.dtype} {tuple(found.shape)}, expected "
                    f"{wanted.dtype} {tuple(wanted.shape)}")
        if op.name in UNINITIALIZED or values == "any":
            continue
        if values == "equal":
            if not _same_bits(found, wanted):
                return f"result {index}: other bits, {_short(found, wanted)}"
            continue
        scale = _scale(wanted)
        rtol = SENSITIVE.get(op.name, 1e-4)
        atol = rtol / 10
        if wanted.dtype in (torch.bfloat16, torch.half):
            rtol = atol = ROUNDED_BY_WORKER.get(op.name, 1e-2)
        try:
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol * scale,
                                       equal_nan=True)
        except AssertionError as error:
            return f"result {index}: {str(error).splitlines()[0]} {_short(found, wanted)}"
    return ""


def _same_bits(found, wanted):
    return bool(((found == wanted) | (found != found) & (wanted != wanted)).all())


def _same_number(found, wanted):
    return found == wanted or (found != found and wanted != wanted)


def _scale(tensor):
    if not tensor.is_floating_point() and not tensor.is_complex() or not tensor.numel():
        return 1.0
    finite = tensor[torch.isfinite(tensor)].abs()
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


def _short(found, wanted):
    first, second = str(found.flatten()[:4].tolist()), str(wanted.flatten()[:4].tolist())
    return f"got {first[:60]} expected {second[:60]}"


def cases(op, dtype, kind, count):
    """(sample, oracle's results, whether it draws) of the samples that plain PyTorch runs.

    Of errors: (sample, oracle's exception, False), all that PyTorch's database has.
    """
    if kind == "errors":
        yield from error_cases(op)
        return
    for sample in samples(op, dtype, count, kind == "backward"):
        leaves = arguments_of(sample)[0]
        if not all(map(is_strided, leaves)):
            continue
        arguments = placed(sample, itertools.repeat(None), lambda tensor, _: tensor.clone())
        try:
            expected = run(op, sample, arguments, kind, _detached)
            if kind == "out" and not all(isinstance(x, torch.Tensor) for x in expected[0]):
                continue
        except Exception:
            continue
        if all(map(is_strided, tree_leaves(expected))):
            expected = copy.deepcopy(expected)
            yield sample, expected, op.name in RANDOM and _draws(op, sample, kind, expected)


def _draws(op, sample, kind, expected):
    """Whether another seed gives other values."""
    arguments = placed(sample, itertools.repeat(None), lambda tensor, _: tensor.clone())
    seed = torch.manual_seed
    torch.manual_seed = lambda number: seed(number + 1)  # the database's operators seed too
    try:
        again = run(op, sample, arguments, kind, _detached)
    finally:
        torch.manual_seed = seed
    return difference(expected, again, op, "equal") != ""


def error_cases(op):
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        if not all(map(is_strided, arguments_of(sample)[0])):
            continue
        arguments = placed(sample, itertools.repeat(None), lambda tensor, _: tensor.clone())
        raised = raised_by(op, arguments)
        if raised is not None:
            yield sample, raised, False


def raised_by(op, arguments):
    """What the call raises, or None."""
    positional, keywords = arguments
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            op(*positional, **keywords)
        except Exception as error:
            return error
    return None


def attempt_error(op, expected, arguments, settle):
    """'right': the same error; 'wrong': another one; 'late': at the next read; 'error': none.

    settle() waits for the workers and tells whether one of them failed.
    """
    found = raised_by(op, arguments)
    if found is None:
        kind = "late" if settle() else "error"
        return Outcome(kind, f"nothing raised at once, expected {expected!r:.300}")
    same = type(found) is type(expected) and str(found) == str(expected)
    if same:
        return Outcome("right")
    return Outcome("wrong", f"{found!r:.300} expected {expected!r:.300}")


def _detached(value):
    return value.detach().clone().resolve_conj().resolve_neg() \
        if isinstance(value, torch.Tensor) else value


def attempt(op, sample, expected, arguments, kind, read, place=None, values="close"):
    """The outcome of one case: the arguments are where they are to run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            actual = run(op, sample, arguments, kind, read, place)
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {str(error)[:400]}")
    wrong = difference(expected, actual, op, values)
    return Outcome("wrong", wrong) if wrong else Outcome("right")
