"""What every backend of collectives must do.

A case is a function of (backend, rank, size), run by each member at once; CASES maps its name to
it. The runners decide how members live: threads, MPI ranks, GPUs. A case names the traits that a
backend must have for it; those a backend lacks are listed, with the reason, by its runner.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`needs` are names of traits; `min_size` is the fewest members it makes sense with."""

    name: str
    body: Callable
    needs: frozenset
    min_size: int

    def run(self, backend, rank, size):
        self.body(backend, rank, size)


CASES = {}


def case(*variants, needs=(), min_size=1):
    """Register the function as a case, once for each variant (extra arguments).

    `needs` is a tuple of traits or a function from a variant to one.
    """

    def register(body):
        for variant in variants or ((),):
            words = [str(word).removeprefix("torch.") for word in variant]
            name = body.__name__ + (f"[{'-'.join(words)}]" if words else "")
            assert name not in CASES, f"two cases are called {name}"
            traits = needs(*variant) if callable(needs) else needs

            def run(backend, rank, size, body=body, variant=variant):
                body(backend, rank, size, *variant)

            CASES[name] = Case(name, run, frozenset(traits), min_size)
        return body

    return register


def load():
    """All cases."""
    from . import cases_async, cases_data, cases_errors, cases_mpi, cases_reduce  # noqa: F401

    return CASES
