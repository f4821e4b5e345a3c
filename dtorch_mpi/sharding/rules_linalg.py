"""Linear algebra: batches of matrices, columns of right-hand sides, and contractions."""

import torch

from dtorch_mpi.sharding.formulas import by_formula, labelled_rules
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rule_table import (
    overloads_of,
    register,
    register_formulas,
    register_function,
)

aten = torch.ops.aten

register_formulas({
    aten._linalg_det: "...__ -> ..., ...__, ..._",
    aten._linalg_slogdet: "...__ -> ..., ..., ...__, ..._",
    aten.linalg_inv_ex: "...__ -> ...__, ...",
    aten.cholesky_inverse: "...__ -> ...__",
    aten.linalg_cholesky_ex: "...__ -> ...__, ...",
    aten.cholesky_solve: "..._c, ...__ -> ..._c",
    aten.triangular_solve: "..._c, ...__ -> ..._c, =...__",
    aten.linalg_ldl_factor_ex: "...__ -> ...__, ..._, ...",
    aten.linalg_ldl_solve: "...__, ..._, ..._c -> ..._c",
    aten.linalg_lu: "...__ -> ...__, ...__, ...__",
    aten.linalg_lu_factor_ex: "...__ -> ...__, ..._, ...",
    aten.lu_unpack: "...__, ..._ -> ...__, ...__, ...__",
    aten.linalg_matrix_exp: "...__ -> ...__",
    aten.linalg_pinv.atol_rtol_tensor: "...__, ..., ... -> ...__",
    aten.linalg_householder_product: "...__, ..._ -> ...__",
    aten.ormqr: "...__, ..._, ...__ -> ...__",
    aten._linalg_eigvals: "...__ -> ..._",
    aten.linalg_eig: "...__ -> ..._, ...__",
    aten._linalg_eigh: "...__ -> ..._, ...__",
    aten.linalg_qr: "...__ -> ...__, ...__",
    aten.geqrf: "...__ -> ...__, ..._",
    aten._linalg_check_errors: "... -> !",
    aten._cdist_forward: "...p_, ...r_ -> ...pr",
    aten._euclidean_dist: "...p_, ...r_ -> ...pr",
    aten._cdist_backward: "...pr, ...p_, ...r_, ...pr -> ...p_ | r",
})

if hasattr(aten, "cholesky"):  # until torch 2.13
    register_formulas({aten.cholesky: "...__ -> ...__"})

# What is summed over; inputs of the product may be sums, one at a time.
register_formulas({
    aten.mv: "ik, k -> i | k",
    aten.dot: "k, k -> | k",
    aten.vdot: "k, k -> | k",
})


def _added_to(target, self_dims, rest, addend):
    """Products that are added to ``self``, which may lack dims of theirs."""

    def enter(op):
        @register(op, adds=bool(addend))
        def rules(args, kwargs, outputs):
            given = args[0].meta if isinstance(args[0], ShardedMeta) else None
            term = "" if given is None else self_dims[len(self_dims) - given.ndim :]
            return by_formula(op, f"{term}, {rest}", addend=addend)(args, kwargs, outputs)

    for op in overloads_of(target):
        enter(op)


_added_to(aten.addr, "ij", "i, j -> ij", "")
_added_to(aten.addmv, "i", "ik, k -> i | k", "self")
_added_to(aten.addbmm, "np", "bnm, bmp -> np | bm", "self")


@register_function(aten.linalg_solve_triangular)
def _solve_triangular(args, kwargs, outputs):
    return "...__, ..._c -> ..._c" if kwargs.get("left", True) else "...__, ...c_ -> ...c_"


@register_function(aten.linalg_lu_solve)
def _lu_solve(args, kwargs, outputs):
    before = "...__, ..._, "
    return before + ("..._c -> ..._c" if kwargs.get("left", True) else "...c_ -> ...c_")


@register_function(aten._linalg_svd)
def _svd(args, kwargs, outputs):
    has_vectors = len(args) < 3 or args[2]  # else they are empty
    return "...__ -> ...__, ..._, ...__" if has_vectors else "...__ -> =_, ..._, =_"


@register_function(aten._linalg_solve_ex, compares=True)
def _solve(args, kwargs, outputs):
    matrix, right = args[0].meta, args[1].meta
    factors = "=...__, =..._, =..."
    if right.ndim == 1 or right.shape == matrix.shape[:-1]:
        return f"...__, ..._ -> ..._, {factors}"
    columns = "..._c" if kwargs.get("left", True) else "...c_"
    return f"...__, {columns} -> {columns}, {factors}"


@register(aten._trilinear)
def _trilinear(args, kwargs, outputs):
    expands, summed = args[3:6], args[6]
    if not all(isinstance(given, ShardedMeta) for given in args[:3]):
        return None
    inputs, total = [], args[0].meta.ndim
    for given, expand in zip(args[:3], expands, strict=True):
        total = given.meta.ndim + len(expand)
        inputs.append((given.meta, [d for d in range(total) if d not in expand]))
    made = [d for d in range(total) if d not in summed]
    return labelled_rules(inputs, [(outputs[0], made)], summed)
