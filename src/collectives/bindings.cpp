// Python's face: dtorch_mpi._collectives. The backends appear as torch's own Backend class.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <mutex>

#include "collectives/host_staged.h"
#include "collectives/thread_backend.h"

namespace {

namespace py = pybind11;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Groups of this process's workers, made by whichever member comes first.
class ThreadGroups {
 public:
  BackendPtr backend(const std::vector<int32_t>& workers, int rank) {
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

using MakeGroup = std::function<BackendPtr(const std::vector<int32_t>&, int)>;
constexpr const char* kMakeGroup = "dtorch.MakeGroup";

py::capsule capsule_of(MakeGroup make) {
  return py::capsule(new MakeGroup(std::move(make)), kMakeGroup, [](PyObject* capsule) {
    delete static_cast<MakeGroup*>(PyCapsule_GetPointer(capsule, kMakeGroup));
  });
}

// The function is called without the GIL, from threads of C++.
MakeGroup from_python(const py::function& function) {
  // Let go with the GIL held, whoever has the last copy.
  const std::shared_ptr<py::function> kept(new py::function(function), [](py::function* last) {
    const py::gil_scoped_acquire acquire;
    delete last;
  });
  return [kept](const std::vector<int32_t>& workers, int rank) {
    const py::gil_scoped_acquire acquire;
    try {
      return (*kept)(workers, rank).cast<BackendPtr>();
    } catch (const py::error_already_set& error) {
      // As an error that may leave this scope without the GIL.
      const std::string text = error.what();
      TORCH_CHECK(false, text.substr(0, text.find("\n\nAt:")));
    }
  };
}

BackendPtr make_group(const py::capsule& maker, const std::vector<int32_t>& workers, int rank) {
  const auto& make = *static_cast<MakeGroup*>(PyCapsule_GetPointer(maker.ptr(), kMakeGroup));
  const py::gil_scoped_release release;
  return make(workers, rank);
}

// (type, number) of the accelerators this process can use, ("cpu", 0) without. Not torch.cuda's
// count: what other types than CUDA are there is known here alike.
std::pair<std::string, int> accelerators() {
  for (const auto type : {c10::DeviceType::CUDA, c10::DeviceType::XPU}) {
    if (!c10::impl::hasDeviceGuardImpl(type)) continue;
    if (const int count = c10::impl::VirtualGuardImpl(type).deviceCount(); count > 0) {
      return {c10::DeviceTypeName(type, /*lower_case=*/true), count};
    }
  }
  return {"cpu", 0};
}

}  // namespace

PYBIND11_MODULE(_collectives, m) {
  py::module_::import("torch.distributed");

  m.def("delay_collectives", [](int64_t us) { dtorch::delay_collectives(std::chrono::microseconds(us)); });

  m.def("accelerators", &accelerators,
        "(type, number) of the accelerators that this process can use, ('cpu', 0) without.");

  m.def("group_maker", [](const py::function& function) { return capsule_of(from_python(function)); },
        py::arg("function"),
        "Capsule by which workers make groups, of a function of (workers, rank) to a Backend.");
  m.def("make_group", &make_group, py::arg("maker"), py::arg("workers"), py::arg("rank"),
        "Make a group with such a capsule: the named workers call it together, each with its "
        "place among them.");

  m.def("host_staged", &dtorch::make_host_staged_backend, py::arg("inner"), py::arg("device"),
        "A Backend for tensors on an accelerator by way of pinned memory and `inner`, a backend "
        "of this package.");

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
             return capsule_of([groups](const std::vector<int32_t>& workers, int rank) {
               return groups->backend(workers, rank);
             });
           })
      .def("abort", &ThreadGroups::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>());
}
