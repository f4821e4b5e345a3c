"""What a failure on a worker looks like to the user."""

from . import _core


class WorkerError(RuntimeError):
    """An operator failed on a worker.

    A tensor that it should have written to, in place, has no value until all of it is written
    over: by copy_(), zero_(), fill_(), or for a module by load_state_dict().

    Attributes: operator (with the arguments' shapes and placements), reason (PyTorch's text),
    site ("file:line in function" where the operator was issued), worker, rank (of the worker
    under a launcher, else None), host, record (its number in the program's order).
    """

    operator: str
    reason: str
    site: str
    record: int
    worker: int
    rank: int | None
    host: str

    def __init__(self, text: str, site: int | str, record: int, worker: int, host: str,
                 rank: int | None = None) -> None:
        self.operator, _, self.reason = text.partition("): ")
        if self.reason:
            self.operator += ")"
        else:
            self.operator, self.reason = "", text
        self.site = _core.site_text(site) if isinstance(site, int) else site
        self.record = record
        self.worker = worker
        self.rank = rank
        self.host = host
        self._made_of = (text, self.site, record, worker, host, rank)
        where = f"worker {worker}" + ("" if rank is None else f" (rank {rank})") + f" on {host}"
        super().__init__(
            f"{text}\n"
            f"  issued at {self.site}\n"
            f"  failed on {where} (record {record}); this is the first place where its result "
            "or a sync was waited for"
        )

    def __reduce__(self):
        return type(self), self._made_of
