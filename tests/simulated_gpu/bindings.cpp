// Python's face; tests/simulated_gpu/__init__.py says what each function is.

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>

#include "checker.h"
#include "device.h"
#include "driver.h"
#include "failing_group.h"
#include "graphs.h"
#include "hooks.h"
#include "host_memory.h"
#include "operators.h"

namespace simulated_gpu {
namespace {

namespace py = pybind11;

void start(int devices, const std::map<std::string, std::string>& rules) {
  std::map<std::string, DeviceRule> operators;
  for (const auto& [name, rule] : rules) {
    operators[name] = rule == "any"               ? DeviceRule::kAny
                      : rule == "tensor iterator" ? DeviceRule::kTensorIterator
                                                  : DeviceRule::kOneDevice;
  }
  set_cuda_operators(std::move(operators));
  register_devices(devices);
  replace_hooks();
  at::setHostAllocator(c10::kCUDA, host_allocator());
}

py::dict counts() {
  Counts counts = Checker::get().counts();
  py::dict result;
  result["device_synchronizations"] = counts.device_synchronizations;
  result["stream_synchronizations"] = counts.stream_synchronizations;
  result["event_synchronizations"] = counts.event_synchronizations;
  result["blocking_copies"] = counts.blocking_copies;
  result["recorded_streams"] = counts.recorded_streams;
  result["events"] = counts.events;
  result["emptied_caches"] = counts.emptied_caches;
  result["operators"] = counts.operators;
  return result;
}

at::Tensor pinned(std::vector<int64_t> sizes, py::object dtype) {
  auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  return at::detail::empty_generic(sizes, at::getHostAllocator(c10::kCUDA),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU), type, std::nullopt);
}

CaptureMode capture_mode(const std::string& name) {
  if (name == "global") return CaptureMode::kGlobal;
  if (name == "thread_local") return CaptureMode::kThreadLocal;
  TORCH_CHECK_VALUE(name == "relaxed", "got the capture_error_mode '", name,
                    "', expected 'global', 'thread_local' or 'relaxed'");
  return CaptureMode::kRelaxed;
}

void bind_graphs(py::module_& module) {
  using WithoutLock = py::call_guard<py::gil_scoped_release>;
  py::class_<Graph, std::shared_ptr<Graph>>(module, "CUDAGraph")
      .def(py::init([] { return std::make_shared<Graph>(); }))
      .def("capture_begin",
           [](Graph& graph, std::optional<c10::MempoolId_t> pool, const std::string& mode) {
             graph.capture_begin(pool.value_or(c10::MempoolId_t{0, 0}), capture_mode(mode));
           },
           py::arg("pool") = py::none(), py::arg("capture_error_mode") = "global")
      .def("capture_end", &Graph::capture_end, WithoutLock())
      .def("replay", &Graph::replay, WithoutLock())
      .def("reset", &Graph::reset, WithoutLock())
      .def("pool", &Graph::pool)
      .def("address", [](Graph& graph) { return reinterpret_cast<uintptr_t>(&graph); });
  module.def("graph_pool_handle", &new_pool_handle);
  module.def("replay_address", [] { return reinterpret_cast<uintptr_t>(&simulated_gpu_replay); });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::module_::import("torch.distributed");  // which knows Backend
  module.def("start", &start);
  module.def("set_interpreter", &set_interpreter);
  module.def("violations", [] { return Checker::get().violations(); });
  module.def("counts", &counts);
  module.def("reset", [] { Checker::get().reset(); });
  module.def("set_event_delay", [](int polls) { Checker::get().set_event_delay(polls); });
  module.def("set_host_order", [](bool process) { Checker::get().set_host_order(process); });
  module.def("live_bytes", [](int device) { return Checker::get().bytes(device).now; });
  module.def("pinned", &pinned);
  module.def("is_pinned", [](const at::Tensor& tensor) { return is_pinned(tensor.data_ptr()); });
  module.def("exchange_stream", &exchange_stream);
  module.def("failing_group", &failing_group);
  module.def("current_device",
             [] { return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index(); });
  module.def("fail_collectives_from", &fail_collectives_from);
  module.def("current_stream", [](int device) { return current_stream(device); });
  module.def("new_stream", [](int device) { return new_stream(device); });
  module.def("synchronize_stream", [](c10::Stream stream) {
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeStream(stream);
  });
  module.def("synchronize_device", [](int device) {
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(device);
  });
  bind_graphs(module);
}

}  // namespace simulated_gpu
