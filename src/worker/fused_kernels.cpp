#include "worker/fused.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include <c10/util/Exception.h>

namespace dtorch {
namespace {

// Of the process, by number and device; a kernel that is known stays.
struct Kernels {
  std::shared_mutex mutex;
  std::map<std::pair<int64_t, c10::DeviceIndex>, std::unique_ptr<FusedKernel>> known;

  static Kernels& get() {
    static Kernels* kernels = new Kernels;
    return *kernels;
  }
};

void add(int64_t number, c10::DeviceIndex device, FusedKernel kernel) {
  auto& kernels = Kernels::get();
  std::unique_lock lock(kernels.mutex);
  auto& place = kernels.known[{number, device}];
  // A worker of this process may be about to call the one that is there.
  if (!place) place = std::make_unique<FusedKernel>(std::move(kernel));
}

}  // namespace

const FusedKernel& known_kernel(int64_t number, c10::DeviceIndex device) {
  auto& kernels = Kernels::get();
  std::shared_lock lock(kernels.mutex);
  auto found = kernels.known.find({number, device});
  TORCH_CHECK(found != kernels.known.end(), "fused kernel ", number, " is not loaded on this worker: this is a fault of "
              "dtorch_mpi; leave fusion out of DTORCH_PASSES meanwhile");
  return *found->second;
}

void load_fused_kernel(int64_t number, const std::string& path, FusedKernel kernel) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = library == nullptr ? nullptr : dlsym(library, "dtorch_fused");
  void* rows_function = library == nullptr ? nullptr : dlsym(library, "dtorch_fused_rows");
  if (function == nullptr && rows_function == nullptr) {
    const char* error = dlerror();
    throw std::runtime_error("loading " + path + ": " + (error != nullptr ? error : "no dtorch_fused in it"));
  }
  kernel.function = reinterpret_cast<FusedKernel::Function>(function);
  kernel.rows_function = reinterpret_cast<FusedKernel::RowsFunction>(rows_function);
  kernel.reduces_rows = rows_function != nullptr;
  add(number, kHost, std::move(kernel));
}

void load_device_kernel(int64_t number, c10::DeviceIndex device, FusedKernel kernel) {
  add(number, device, std::move(kernel));
}

}  // namespace dtorch
