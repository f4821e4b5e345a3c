// Python's face: dtorch_mpi._collectives. The backends appear as torch's own Backend class.

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <mutex>

#include "collectives/thread_backend.h"

namespace {

// Groups of this process's workers, made by whichever member comes first.
class ThreadGroups {
 public:
  c10::intrusive_ptr<c10d::Backend> backend(const std::vector<int32_t>& workers, int rank) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& group = groups_[workers];
    if (!group) group = std::make_shared<dtorch::ThreadGroup>(static_cast<int>(workers.size()));
    return dtorch::make_thread_backend(group, rank);
  }
  void abort(const std::string& reason) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& [workers, group] : groups_) group->abort(reason);
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<int32_t>, std::shared_ptr<dtorch::ThreadGroup>> groups_;
};

using MakeGroup =
    std::function<c10::intrusive_ptr<c10d::Backend>(const std::vector<int32_t>&, int)>;

}  // namespace

PYBIND11_MODULE(_collectives, m) {
  namespace py = pybind11;
  py::module_::import("torch.distributed");

  m.def("delay_collectives", [](int64_t us) { dtorch::delay_collectives(std::chrono::microseconds(us)); });

  py::class_<dtorch::ThreadGroup, std::shared_ptr<dtorch::ThreadGroup>>(
      m, "ThreadGroup", "What `size` worker threads of this process share for collectives.")
      .def(py::init<int>(), py::arg("size"))
      .def_property_readonly("size", &dtorch::ThreadGroup::size)
      .def("backend", &dtorch::make_thread_backend, py::arg("rank"),
           "The group's member `rank`, as a torch.distributed Backend for CPU tensors.")
      .def("abort", &dtorch::ThreadGroup::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>(),
           "Make every member that waits, and every later call, raise DistBackendError.");

  py::class_<ThreadGroups, std::shared_ptr<ThreadGroups>>(
      m, "ThreadGroups", "Makes the groups of a mesh's axes for worker threads of this process.")
      .def(py::init<>())
      .def("maker",
           [](std::shared_ptr<ThreadGroups> groups) {
             auto* make = new MakeGroup([groups](const std::vector<int32_t>& workers, int rank) {
               return groups->backend(workers, rank);
             });
             return py::capsule(make, "dtorch.MakeGroup", [](PyObject* capsule) {
               delete static_cast<MakeGroup*>(PyCapsule_GetPointer(capsule, "dtorch.MakeGroup"));
             });
           })
      .def("abort", &ThreadGroups::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>());
}
