"""What a failure on a worker looks like to the user."""

from . import _core


class WorkerError(RuntimeError):
    """An operator failed on a worker.

    Attributes: operator (with the arguments' shapes and placements), reason (PyTorch's text),
    site ("file:line in function" where the operator was issued), worker, host, record (its
    number in the program's order).
    """

    def __init__(self, text, site, record, worker, host):
        self.operator, _, self.reason = text.partition("): ")
        if self.reason:
            self.operator += ")"
        else:
            self.operator, self.reason = "", text
        self.site = _core.site_text(site)
        self.record = record
        self.worker = worker
        self.host = host
        where = f"worker {worker} on {host}"
        super().__init__(
            f"{text}\n"
            f"  issued at {self.site}\n"
            f"  failed on {where} (record {record}); this is the first place where its result "
            "or a sync was waited for"
        )
