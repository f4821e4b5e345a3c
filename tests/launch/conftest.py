import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dtorch_mpi"

# The C++ class with a C face, for tests that write records without the extensions.
WRITER = r"""
#include "wire/flight_record.h"
using namespace dtorch;
static std::unique_ptr<FlightRecord> record;
extern "C" {
int create(const char* path, unsigned rank, unsigned world, const char* host, const char* role) {
  record = FlightRecord::create(path, rank, world, host, role);
  return record->in_file();
}
void destroy();
void note(unsigned op, unsigned site) { record->note(op, site); }
void define_op(unsigned op, const char* name) { record->define_op(op, name); }
void define_site(unsigned site, const char* text) { record->define_site(site, text); }
void set_state(unsigned state) { record->set_state(static_cast<FlightState>(state)); }
void set_cause(const char* text) { record->set_cause(text); }
static Activity* activities[64];
void begin(unsigned graph, unsigned kind, unsigned number, unsigned site) {
  if (!activities[graph]) activities[graph] = record->take_activity(graph);
  activities[graph]->thread = 77;
  activities[graph]->name_kernel("my::kernel");
  activities[graph]->begin(kind, number, site);
}
void rest(unsigned graph) { activities[graph]->rest(); }
void wait(unsigned graph, unsigned wait, unsigned site) {
  activities[graph]->wait = wait;
  activities[graph]->wait_site = site;
}
void catch_fatal_signals() { record->catch_fatal_signals(); }
void layout(size_t* out) {
  size_t values[] = {
      sizeof(FlightHeader), sizeof(FlightSite), sizeof(FlightEntry), FlightRecord::kOperatorSize,
      offsetof(FlightHeader, state), offsetof(FlightHeader, sequence),
      offsetof(FlightHeader, ring_size), offsetof(FlightHeader, host),
      offsetof(FlightHeader, cause), FlightHeader::kVersion,
      static_cast<size_t>(FlightState::kFinished), static_cast<size_t>(FlightState::kFailed),
      static_cast<size_t>(FlightState::kTold), sizeof(Activity), offsetof(Activity, count),
      offsetof(Activity, kind), offsetof(Activity, kernel),
      offsetof(FlightHeader, activities_offset), offsetof(FlightHeader, num_activities)};
  std::copy(std::begin(values), std::end(values), out);
}
void destroy() {
  record.reset();
  std::fill(std::begin(activities), std::end(activities), nullptr);
}
}
"""


@pytest.fixture(scope="session")
def writer_library(tmp_path_factory):
    """Path of a shared library around FlightRecord."""
    folder = tmp_path_factory.mktemp("flight")
    source = folder / "writer.cpp"
    source.write_text(WRITER)
    library = folder / "writer.so"
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    subprocess.run([*compiler, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared",
                    "-fPIC", f"-I{ROOT / 'src'}", str(source), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="session")
def mpirun():
    """The mpirun of the MPI that mpi4py loads."""
    from dtorch_mpi.launch.command import find_launcher

    return find_launcher("mpirun")


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Environment for child processes that use single modules of dtorch_mpi.

    They find the package's modules but not its __init__, which imports torch: that takes seconds
    with as many ranks as cores.
    """
    folder = tmp_path_factory.mktemp("bare")
    (folder / "dtorch_mpi").mkdir()
    (folder / "dtorch_mpi" / "__init__.py").write_text(f"__path__ = [{str(PACKAGE)!r}]\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
