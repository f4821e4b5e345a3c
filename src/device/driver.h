// Kernels in a GPU's machine code, loaded and launched through CUDA's driver, which PyTorch for CUDA has loaded
// anyway: its C interface is found at run time, so that the build needs no toolkit.
//
// See the CUDA Driver API, "Module Management" and "Execution Control".
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include <c10/core/Stream.h>

namespace dtorch {

class DeviceFunction {
 public:
  DeviceFunction() = default;
  // image: of the calling thread's current device, which has a context. Raises std::runtime_error where it can't
  // be loaded. It stays loaded for as long as the process lasts.
  DeviceFunction(const std::string& image, const std::string& name) {
    void* module = nullptr;
    check(driver().load(&module, image.data()), "loading a kernel");
    check(driver().find(&function_, module, name.c_str()), "finding " + name + " in a kernel's module");
  }

  // parameters: addresses of what the kernel takes. Behind all that the stream has been given.
  void launch(const c10::Stream& stream, uint32_t blocks, uint32_t threads, uint32_t shared_bytes, void** parameters) const {
    check(driver().launch(function_, blocks, 1, 1, threads, 1, 1, shared_bytes, stream.native_handle(), parameters, nullptr),
          "launching a kernel");
  }

 private:
  struct Driver {
    int (*load)(void** module, const void* image);
    int (*find)(void** function, void* module, const char* name);
    int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra);
    int (*say)(int error, const char** text);
  };

  static const Driver& driver() {
    static const Driver found = [] {
      void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
      Driver driver{};
      const auto find = [&](auto* function, const char* name) {
        *reinterpret_cast<void**>(function) = library == nullptr ? nullptr : dlsym(library, name);
        if (*function == nullptr) throw std::runtime_error(std::string("CUDA's driver, libcuda.so.1, has no ") + name);
      };
      find(&driver.load, "cuModuleLoadData");
      find(&driver.find, "cuModuleGetFunction");
      find(&driver.launch, "cuLaunchKernel");
      find(&driver.say, "cuGetErrorString");
      return driver;
    }();
    return found;
  }

  static void check(int error, const std::string& doing) {
    if (error == 0) return;
    const char* text = nullptr;
    driver().say(error, &text);
    throw std::runtime_error(doing + ": CUDA error " + std::to_string(error) + (text != nullptr ? std::string(", ") + text : ""));
  }

  void* function_ = nullptr;
};

}  // namespace dtorch
