"""What the extensions were built against, without loading them."""


def built_against():
    """A dict of text by subject: "Python", "torch", "MPI" and others; empty where not recorded.

    Extensions of a checkout from before there was a record, and a package that was never built,
    have none.
    """
    try:
        from dtorch_mpi.build_record import RECORD
    except ImportError:
        return {}
    return dict(RECORD)
