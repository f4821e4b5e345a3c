// CUDA's driver, as far as kernels in machine code need it. This library goes by the name of the driver's.
//
// No machine code runs here: a kernel's program in Triton, which stands behind its code in memory, does, in
// Triton's interpreter (triton_programs.py). To the rest of the simulation it is an operator.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <elf.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "checker.h"
#include "device.h"
#include "driver.h"

namespace simulated_gpu {
namespace {

namespace py = pybind11;

constexpr int kInvalidImage = 200, kInvalidHandle = 400, kNotFound = 500;  // as CUresult
constexpr const char* kSchema =
    "launch(Tensor[] read, Tensor(a!)[] written, str program, str name, int[] numbers, int blocks) -> ()";

struct Module {
  std::string program;
};

struct Parameter {
  size_t bytes;
  bool is_address, is_written;
};

struct Function {
  const Module* module;
  std::string name;
  std::vector<Parameter> parameters;
  unsigned threads;
};

py::object* interpreter = nullptr;  // never destroyed

// Machine code tells its own length.
size_t length_of(const void* image) {
  const auto* head = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_machine != EM_CUDA) return 0;
  return std::max<size_t>(head->e_shoff + size_t{head->e_shnum} * head->e_shentsize,
                          head->e_phoff + size_t{head->e_phnum} * head->e_phentsize);
}

// The kernel's memory from an address on.
at::Tensor memory_at(void* address, c10::Device device) {
  const Block* block = Checker::get().find_block(address);
  TORCH_CHECK(block != nullptr, "an illegal memory access was encountered: a kernel got ", address);
  const auto bytes = block->data + block->bytes - static_cast<char*>(address);
  return at::for_blob(address, {bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

void launch_operator(at::TensorList read, at::TensorList written, const std::string& program,
                     const std::string& name, at::IntArrayRef numbers, int64_t blocks) {
  const py::gil_scoped_acquire gil;
  interpreter->attr("run")(program, name, std::vector<at::Tensor>(read.begin(), read.end()),
                           std::vector<at::Tensor>(written.begin(), written.end()), numbers.vec(),
                           blocks);
}

TORCH_LIBRARY(simulated_gpu, library) {
  library.def(kSchema);
  library.impl("launch", c10::DispatchKey::CPU, TORCH_FN(launch_operator));
}

}  // namespace

void set_interpreter(py::object module) { interpreter = new py::object(std::move(module)); }

}  // namespace simulated_gpu

#define DRIVER extern "C" __attribute__((visibility("default"))) int

DRIVER cuModuleLoadData(void** module, const void* image) {
  using namespace simulated_gpu;
  const size_t length = length_of(image);
  if (length == 0) return kInvalidImage;
  *module = new Module{static_cast<const char*>(image) + length};
  return 0;
}

DRIVER cuModuleGetFunction(void** function, void* module, const char* name) {
  using namespace simulated_gpu;
  auto made = std::make_unique<Function>(Function{static_cast<Module*>(module), name, {}, 0});
  const py::gil_scoped_acquire gil;
  const py::object told = interpreter->attr("parameters")(made->module->program, name);
  if (told.is_none()) return kNotFound;
  for (const auto& parameter : told[py::int_(1)]) {
    const auto [bytes, is_address, is_written] = parameter.cast<std::tuple<size_t, bool, bool>>();
    made->parameters.push_back({bytes, is_address, is_written});
  }
  made->threads = told[py::int_(0)].cast<unsigned>();
  *function = made.release();
  return 0;
}

DRIVER cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void* stream,
                      void** parameters, void**) {
  using namespace simulated_gpu;
  const auto& called = *static_cast<Function*>(function);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Device device = guard.getDevice();
  // Of the calls that a real driver takes, those that the operator below stands for.
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || block_x != called.threads ||
      reinterpret_cast<int64_t>(stream) != current_stream(device.index()).id()) {
    return kInvalidHandle;
  }
  std::vector<at::Tensor> read, written;
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < called.parameters.size(); ++i) {
    const auto& parameter = called.parameters[i];
    if (parameter.is_address) {
      auto memory = memory_at(*static_cast<void**>(parameters[i]), device);
      (parameter.is_written ? written : read).push_back(std::move(memory));
    } else {
      std::memcpy(&numbers.emplace_back(0), parameters[i], parameter.bytes);
    }
  }
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("simulated_gpu::launch", "")
                             .typed<decltype(launch_operator)>();
  op.call(read, written, called.module->program, called.name, numbers, grid_x);
  return 0;
}

DRIVER cuGetErrorString(int error, const char** text) {
  using namespace simulated_gpu;
  *text = error == kInvalidImage ? "device kernel image is invalid"
          : error == kNotFound   ? "named symbol not found"
                                 : "invalid resource handle";
  return 0;
}
