"""Saves or loads in a job of its own. Usage: checkpoint_job.py save|load|single FOLDER SHAPE."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import saved_layouts  # noqa: E402

import dtorch_mpi as dt  # noqa: E402

what, folder, shape = sys.argv[1:]
dt.init()
mesh = dt.init_device_mesh(tuple(map(int, shape.split("x"))))
if what == "load":
    for one in sorted(Path(folder).iterdir()):
        state = {"x": saved_layouts.blank(mesh)}
        dt.checkpoint.load(one, state)
        saved_layouts.check(state["x"])
        saved_layouts.check(dt.checkpoint.load(one, mesh=mesh)["x"])
else:
    single = what == "single"
    state = {"x": saved_layouts.placed(mesh)}
    dt.checkpoint.save(folder, state, single_file=single)
    future = dt.checkpoint.save_async(folder, state, single_file=single)
    for name in saved_layouts.SIZES:  # what was saved is what was there
        state["x"][name].zero_()
    dt.sync()
    future.get()
print("done")
