#include "recording.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <map>

#include "captures.h"
#include "device.h"
#include "hooks.h"

namespace simulated_gpu {
namespace {

using c10::IValue;
using torch::jit::Stack;

// Shadows that hold zeros, for kernels that find invalid values in the others.
struct Zeros final : Shadows {
  explicit Zeros(Capture& capture) : capture(capture) {}
  void* shadow(const void* pointer, size_t bytes) override {
    if (bytes == 0) return const_cast<void*>(pointer);
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    std::memset(memory.get(), 0, bytes);
    held.push_back(std::move(memory));
    return held.back().get();
  }
  void take_shadow(const void* memory, c10::Storage shadow) override {
    capture.take_shadow(memory, std::move(shadow));
  }

  Capture& capture;
  std::vector<c10::DataPtr> held;
};

// Draws nothing from the generator of the call: a capture leaves it as it was.
class KeptGenerator {
 public:
  KeptGenerator(const Traits& traits, c10::ArrayRef<IValue> arguments) {
    if (!traits.is_random) return;
    generator_ = at::detail::getDefaultCPUGenerator();
    for (const IValue& argument : arguments) {
      if (!argument.isGenerator() || !argument.toGenerator().defined()) continue;
      generator_ = cpu_generator(argument.toGenerator());
    }
    std::lock_guard guard(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeptGenerator() {
    if (!generator_.defined()) return;
    std::lock_guard guard(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void check_host_values(Capture& capture, const Traits& traits, c10::ArrayRef<IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_cpu()) return;
      // Others are read by the host when the operator is issued.
      if (!traits.arguments[i].may_be_cpu) return;
      capture.refuse("a copy from pageable host memory, of indices of " + traits.name + ",");
    });
    if (!arguments[i].isGenerator() || !arguments[i].toGenerator().defined()) continue;
    const at::Generator& usual = at::detail::getCUDAHooks().getDefaultGenerator(
        arguments[i].toGenerator().device().index());
    TORCH_CHECK(arguments[i].toGenerator() == usual, traits.name, " got a generator of its own, "
                "expected the device's default one while a CUDA graph is captured");
  }
}

// Arguments over the same addresses, which hold no memory.
class Unowned {
 public:
  IValue operator()(const IValue& value) {
    return with_tensors(value, [&](const at::Tensor& tensor) { return one(tensor); });
  }

 private:
  at::Tensor one(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor& made = tensors_[tensor.unsafeGetTensorImpl()];
    if (made.defined()) return made;
    if (!tensor.is_cuda()) {
      made = tensor.clone();
      bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      made.unsafeGetTensorImpl()->set_wrapped_number(is_number);
      return made;
    }
    c10::Storage& storage = storages_[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) {
      void* memory = const_cast<void*>(tensor.storage().data());
      storage = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                             c10::DataPtr(memory, tensor.device()), device_allocator(), true);
    }
    return made = tensor_over(storage, tensor, c10::DispatchKey::CUDA);
  }

  std::map<const void*, at::Tensor> tensors_;
  std::map<const void*, c10::Storage> storages_;
};

Aliases call(const Traits& traits, c10::DeviceIndex device, const std::vector<IValue>& arguments,
             Shadows* shadows, Stack* results) {
  Aliases aliases(device, traits.name, shadows);
  for (size_t i = 0; i < arguments.size(); ++i) {
    results->push_back(to_cpu(arguments[i], traits.arguments[i], aliases));
  }
  run_on_cpu(traits, results);
  return aliases;
}

}  // namespace

void record(Capture& capture, const Traits& traits, c10::Device device, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  capture.require_valid();
  std::vector<IValue> arguments = torch::jit::last(*stack, traits.arguments.size()).vec();
  check_host_values(capture, traits, arguments);
  torch::jit::drop(*stack, arguments.size());
  RecordedOperator recorded{&traits, device.index(), {}, {}, {}};
  Unowned unowned;
  for (const IValue& argument : arguments) recorded.arguments.push_back(unowned(argument));

  KeptGenerator kept(traits, arguments);
  Zeros zeros(capture);
  Stack results;
  std::optional<Aliases> aliases;
  try {
    aliases = call(traits, device.index(), arguments, &capture, &results);
  } catch (const c10::Error&) {
    // Of values, or of sizes and then again.
    results.clear();
    aliases = call(traits, device.index(), arguments, &zeros, &results);
  }

  aliases->take_over_resizes();
  std::vector<Use> uses = aliases->uses();
  auto writes = [&](const c10::Storage& storage) {
    Block* block = Checker::get().find_block(storage.data());
    if (block != nullptr) uses.push_back({block, true, block->contents});
    return static_cast<char*>(const_cast<void*>(storage.data()));
  };
  for (size_t i = 0; i < aliases->storages().size(); ++i) {
    const auto& [original, alias, before] = aliases->storages()[i];
    if (alias.data() != before) recorded.moved.push_back({i, writes(original), alias.nbytes()});
  }
  size_t index = 0;
  for (IValue& result : results) {
    result = with_tensors(result, [&](const at::Tensor& tensor) {
      size_t known = aliases->storages().size();
      at::Tensor made = aliases->to_cuda(tensor);
      if (aliases->storages().size() > known) {
        recorded.made.push_back({index, writes(made.storage()), made.storage().nbytes()});
      }
      index += 1;
      return made;
    });
  }
  capture.add(std::move(recorded), uses);
  stack->insert(stack->end(), results.begin(), results.end());
}

void run_recorded(const RecordedOperator& recorded) {
  Stack results;
  Aliases aliases = call(*recorded.traits, recorded.device, recorded.arguments, nullptr, &results);
  auto deliver = [&](const RecordedOperator::Result& into, const c10::Storage& storage) {
    TORCH_CHECK(storage.nbytes() == into.bytes, recorded.traits->name, " wrote ",
                storage.nbytes(), " bytes when replayed, but ", into.bytes, " when captured");
    if (into.data != nullptr) std::memcpy(into.data, storage.data(), into.bytes);
  };
  for (const RecordedOperator::Result& into : recorded.moved) {
    deliver(into, aliases.storages()[into.index].alias);
  }
  size_t index = 0;
  auto next = recorded.made.begin();
  for (const IValue& result : results) {
    each_tensor(result, [&](const at::Tensor& tensor) {
      if (next != recorded.made.end() && next->index == index) {
        deliver(*next, tensor.storage());
        ++next;
      }
      index += 1;
    });
  }
}

}  // namespace simulated_gpu
