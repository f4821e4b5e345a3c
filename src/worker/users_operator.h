// An operator that a user has registered, mostly a Python function.
//
// The client goes by what its meta function says, so what it returns is compared with that here,
// on the sizes of this worker's part.
#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

namespace dtorch {

class UsersOperator {
 public:
  // Calls the operator with the arguments on the stack, where the results come. call: its number
  // in the record, 0 where the client asks what came out. Raises ValueError for results that are
  // not what the meta function says.
  void call(const c10::OperatorHandle& op, uint32_t call, c10::Device device,
            std::vector<c10::IValue>* stack) {
    // The stream is the thread's, in Python as here; the device is so too once it is set.
    c10::OptionalDeviceGuard guard;
    if (!device.is_cpu()) guard.reset_device(device);
    const std::vector<Made>* expected = call == 0 ? nullptr : expected_of(op, call, *stack);
    std::vector<const c10::StorageImpl*> taken;
    for (const auto& value : *stack) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage()) taken.push_back(storage_of(tensor));
      });
    }
    op.callBoxed(*stack);
    const auto& returns = op.schema().returns();
    size_t position = 0;
    for (size_t r = 0; r < returns.size() && r < stack->size(); ++r) {
      auto& value = (*stack)[r];
      if (returns[r].alias_info() != nullptr) {
        position += value.isTensorList() ? value.toListRef().size() : 1;
        continue;
      }
      if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) {
          list.push_back(checked(tensor, position++, expected, device, &taken));
        }
        value = std::move(list);
      } else if (value.isTensor()) {
        value = checked(value.toTensor(), position++, expected, device, &taken);
      }
    }
    TORCH_CHECK_VALUE(expected == nullptr || position == expected->size(), "the kernel returned ",
                      position, " tensors, and its meta function ", expected ? expected->size() : 0,
                      ": make them return as many");
  }

 private:
  struct Made {
    bool defined = false;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes, strides;
  };

  static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }

  template <class Function>
  static void for_each_tensor(const c10::IValue& value, Function&& function) {
    if (value.isTensor()) {
      function(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const auto& element : value.toListRef()) {
        if (element.isTensor()) function(element.toTensor());
      }
    }
  }

  static std::string in_words(c10::ScalarType dtype, c10::IntArrayRef sizes) {
    return c10::str(c10::toString(dtype), sizes);
  }

  // What the meta function makes of these arguments; null where it can't tell. Calls of one number
  // differ in nothing that it may depend on.
  const std::vector<Made>* expected_of(const c10::OperatorHandle& op, uint32_t call,
                                       const std::vector<c10::IValue>& arguments) {
    constexpr size_t kMostCalls = 4096;
    auto found = known_.find(call);
    if (found != known_.end()) return found->second ? &*found->second : nullptr;
    if (known_.size() >= kMostCalls) known_.clear();
    auto& entry = known_[call];
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return nullptr;
    const auto stand_in = [](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    };
    std::vector<c10::IValue> stack;
    for (const auto& value : arguments) {
      if (value.isTensor()) {
        stack.emplace_back(stand_in(value.toTensor()));
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(stand_in(tensor));
        stack.emplace_back(std::move(list));
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& tensor : value.toOptionalTensorVector()) {
          list.push_back(tensor ? std::optional(stand_in(*tensor)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
      } else if (value.isDevice()) {
        stack.emplace_back(c10::Device(c10::kMeta));
      } else {
        stack.push_back(value);
      }
    }
    try {
      op.callBoxed(stack);
    } catch (const std::exception&) {
      return nullptr;  // the client has called it with the global sizes, and was content
    }
    entry.emplace();
    for (const auto& value : stack) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        Made made;
        made.defined = tensor.defined();
        if (made.defined) made = {true, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
        entry->push_back(std::move(made));
      });
    }
    return &*entry;
  }

  // A result as the client takes it to be.
  static at::Tensor checked(const at::Tensor& tensor, size_t position, const std::vector<Made>* expected,
                            c10::Device device, std::vector<const c10::StorageImpl*>* taken) {
    const Made* made = expected != nullptr && position < expected->size() ? &(*expected)[position] : nullptr;
    if (!tensor.defined()) {
      TORCH_CHECK_VALUE(made == nullptr || !made->defined, "output ", position, " of the kernel: got None, "
                        "expected ", in_words(made->dtype, made->sizes), ": return a tensor");
      return tensor;
    }
    TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided && tensor.device() == device, "output ", position,
                      " of the kernel is on ", tensor.device(), " (", tensor.layout(), "), expected a dense tensor on ",
                      device, ": make it there, with x.new_empty or device=x.device");
    if (tensor.has_storage() && tensor.numel() > 0) {
      TORCH_CHECK_VALUE(std::find(taken->begin(), taken->end(), storage_of(tensor)) == taken->end(),
                        "output ", position, " of the kernel shares memory with an argument or another "
                        "output: return a copy, x.clone(); a kernel that works in place says so in its "
                        "schema, Tensor(a!) x, and returns nothing or what it was given");
      taken->push_back(storage_of(tensor));
    }
    if (made == nullptr) return tensor;
    TORCH_CHECK_VALUE(made->defined && tensor.scalar_type() == made->dtype &&
                          tensor.sizes() == c10::IntArrayRef(made->sizes),
                      "output ", position, " of the kernel: got ", in_words(tensor.scalar_type(), tensor.sizes()),
                      ", expected ", made->defined ? in_words(made->dtype, made->sizes) : "None",
                      " as the meta function says for this worker's arguments: correct the one that is "
                      "wrong");
    // Views are made by the strides that the client knows, and count from the beginning.
    bool same = tensor.storage_offset() == 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      same = same && (tensor.size(d) <= 1 || tensor.stride(d) == made->strides[d]);
    }
    if (same || tensor.numel() == 0) return tensor;
    return at::empty_strided(made->sizes, made->strides, tensor.options()).copy_(tensor);
  }

  std::unordered_map<uint32_t, std::optional<std::vector<Made>>> known_;  // by number of the call
};

}  // namespace dtorch
