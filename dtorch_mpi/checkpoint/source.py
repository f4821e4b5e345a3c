"""The tensors of a checkpoint that is open: read here, or on each worker its own part."""

from fnmatch import fnmatchcase

from ..kernels import call
from ..mesh import check_placements, without_partial
from ..sharding.plan import placements_for
from . import index, manifest, shares
from .errors import CheckpointError
from .folder import STATE
from .worker_reading import read_part


class Source:
    """An open checkpoint. Methods that read return functions: they run after check()."""

    def __init__(self, folder, files, sharded_dims, verify):
        self._folder, self._files, self._verify = folder, files, verify
        self._sharded_dims = sharded_dims
        self._running = None  # the runtime, once a worker has something to read
        self._is_open = False  # on the workers
        self._made = {}
        self._index = index.open_index(folder)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self._is_open:
            if kind is None:
                from ..runtime import sync

                sync()  # raises the failure of a worker that could not read its part
            shares.ask("close", [], self._running)
        self._index.close()

    def place_new(self, mesh, plan, device):
        """Say where tensors go that are made anew."""
        self._mesh, self._plan, self._device = mesh, plan, device

    def sizes(self, name):
        return index.dataset_of(self._index, name)[0].shape

    def fill(self, target, name):
        """For a tensor that is there, of the right shape."""
        read = self._like(target, name)
        return lambda: target.copy_(read())

    def new(self, name, like=None):
        """For a new one; the same one each time.

        like: a tensor that it belongs to, whose place it takes if it has the same shape.
        """
        if name not in self._made:
            read = self._new(name, like)
            made = []

            def once():
                if not made:
                    made.append(read())
                return made[0]

            self._made[name] = once
        return self._made[name]

    def _new(self, name, like):
        if self._device is not None:
            return self._here(name, self._device)
        if like is not None and tuple(like.shape) == self.sizes(name):
            return self._like(like, name)
        dims = self._sharded_dims.get(name)
        if dims is None:
            return self._here(name, "cpu")
        if like is not None:
            if like.device.type != "dtorch":
                return self._here(name, like.device)
            return self._there(name, like.device_mesh, None)
        if self._mesh is None:
            return self._there(name, None, None)
        return self._there(name, self._mesh, self._planned(name, dims))

    def _planned(self, name, dims):
        from torch.distributed.tensor import Replicate, Shard  # see mesh.py

        if any(fnmatchcase(name, pattern) for pattern in self._plan):
            return placements_for(name, self._plan, self._mesh)
        if len(dims) != self._mesh.ndim:
            return None
        return tuple(Replicate() if dim is None else Shard(dim) for dim in dims)

    def _like(self, tensor, name):
        if tensor.device.type != "dtorch":
            return self._here(name, tensor.device)
        if tensor.device_mesh is None:
            return self._there(name, None, None)
        return self._there(name, tensor.device_mesh, without_partial(tensor.placements))

    def _here(self, name, device):
        self.sizes(name)  # raises if there is none of that name
        return lambda: read_part(self._index, name).to(device)

    def _there(self, name, mesh, placements):
        from ..runtime import runtime

        self._running = runtime()
        dataset, dtype = index.dataset_of(self._index, name)
        sizes = list(dataset.shape)
        if mesh is not None:
            placements = check_placements(mesh, placements, len(sizes))
        return lambda: call("dtorch.checkpoint.read", [name], sizes=sizes, dtype=dtype, mesh=mesh,
                            placements=placements)  # fmt: skip

    def check(self):
        """Compare files with the manifest, on the workers if these have anything to read.

        Raises CheckpointError for the first that is not what it should be.
        """
        # The index and the state were looked at before anything was made of them.
        names = [name for name in self._files if self._verify and name not in (STATE, index.INDEX)]
        if self._running is None:
            for name in names:
                manifest.check_content(self._folder, name, self._files[name])
            return
        num_workers = self._running.num_workers
        to_check = [names[worker::num_workers] for worker in range(num_workers)]
        found = shares.answers(
            "open", [str(self._folder), self._files, to_check], self._running
        )
        wrong = [answer["wrong"] for answer in found if answer["wrong"]]
        if wrong:
            raise CheckpointError(wrong[0])
        self._is_open = True
