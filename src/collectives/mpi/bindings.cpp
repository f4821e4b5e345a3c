// Python's face: dtorch_mpi._mpi_collectives. The backend appears as torch's own Backend class.

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "collectives/mpi/mpi_backend.h"

namespace {

namespace py = pybind11;

// mpi4py must have started the very library that this extension calls.
void check_same_library(const py::module_& mpi4py) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string ours(text, length);
  const auto theirs = mpi4py.attr("Get_library_version")().cast<std::string>();
  const auto first_line = [](const std::string& s) { return s.substr(0, s.find('\n')); };
  TORCH_CHECK(ours.substr(0, theirs.size()) == theirs || theirs.substr(0, ours.size()) == ours,
              "MPIBackend: mpi4py runs \"", first_line(theirs), "\" but dtorch_mpi was built with \"",
              first_line(ours), "\". Rebuild dtorch_mpi with the mpicc of that MPI, or set "
              "MPI4PY_LIBMPI to the libmpi of this one");
  TORCH_CHECK(mpi4py.attr("_sizeof")(mpi4py.attr("Comm")).cast<size_t>() == sizeof(MPI_Comm),
              "MPIBackend: mpi4py and dtorch_mpi were built for different MPI ABIs; rebuild "
              "dtorch_mpi with the mpicc of mpi4py's MPI");
}

c10::intrusive_ptr<c10d::Backend> from_mpi4py(const py::object& comm, int64_t largest) {
  const auto mpi4py = py::module_::import("mpi4py.MPI");
  if (!py::isinstance(comm, mpi4py.attr("Comm"))) {
    throw py::type_error("MPIBackend: got a " +
                         py::str(py::type::of(comm).attr("__name__")).cast<std::string>() +
                         ", expected an mpi4py.MPI.Comm");
  }
  check_same_library(mpi4py);
  const MPI_Comm handle =
      *reinterpret_cast<MPI_Comm*>(mpi4py.attr("_addressof")(comm).cast<uintptr_t>());
  py::gil_scoped_release release;
  return dtorch::make_mpi_backend(handle, /*own=*/false, largest);
}

}  // namespace

PYBIND11_MODULE(_mpi_collectives, m) {
  py::module_::import("torch.distributed");

  m.def("MPIBackend", &from_mpi4py, py::arg("comm"),
        py::arg("largest") = dtorch::kLargestPiece,
        "A torch.distributed Backend for CPU tensors on a duplicate of the mpi4py communicator. "
        "All its ranks must call this. `largest`: bytes of one plain message; more goes in "
        "pieces.");
}
