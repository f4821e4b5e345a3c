// Python's face: dtorch_mpi._collectives. The backends appear as torch's own Backend class.

#include <torch/csrc/utils/pybind.h>

#include "collectives/thread_backend.h"

PYBIND11_MODULE(_collectives, m) {
  namespace py = pybind11;
  py::module_::import("torch.distributed");

  py::class_<dtorch::ThreadGroup, std::shared_ptr<dtorch::ThreadGroup>>(
      m, "ThreadGroup", "What `size` worker threads of this process share for collectives.")
      .def(py::init<int>(), py::arg("size"))
      .def_property_readonly("size", &dtorch::ThreadGroup::size)
      .def("backend", &dtorch::make_thread_backend, py::arg("rank"),
           "The group's member `rank`, as a torch.distributed Backend for CPU tensors.")
      .def("abort", &dtorch::ThreadGroup::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>(),
           "Make every member that waits, and every later call, raise DistBackendError.");
}
