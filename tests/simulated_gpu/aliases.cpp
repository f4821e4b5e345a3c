#include "aliases.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <sstream>

#include "device.h"

namespace simulated_gpu {

at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key) {
  c10::DispatchKeySet keys(key);
  if (like._is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  at::Tensor made =
      at::detail::make_tensor<at::TensorImpl>(c10::Storage(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return made;
}

std::string contents(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes();
  return text.str();
}

c10::Storage Aliases::alias_storage(const c10::Storage& storage) {
  for (const StoragePair& pair : storages_) {
    if (pair.original.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return pair.alias;
  }
  void* memory = const_cast<void*>(storage.data());
  if (shadows_ != nullptr) memory = shadows_->shadow(memory, storage.nbytes());
  c10::DataPtr borrowed(memory, c10::Device(c10::kCPU));
  c10::Storage alias(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(borrowed),
                     c10::GetCPUAllocator(), /*resizable=*/true);
  storages_.push_back({storage, alias, memory});
  return alias;
}

void Aliases::note_use(const at::Tensor& tensor, bool written) {
  if (tensor.numel() == 0) return;
  Block* block = Checker::get().find_block(tensor.storage().data());
  if (block == nullptr) return;
  for (Use& use : uses_) {
    if (use.block != block) continue;
    use.write |= written;
    return;
  }
  uses_.push_back({block, written, contents(tensor)});
}

at::Tensor Aliases::to_cpu(const at::Tensor& tensor, bool read, bool written) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_cuda()) {
    from_cpu_.push_back(tensor);
    return tensor;
  }
  TORCH_CHECK(tensor.layout() == at::kStrided, "a simulated GPU has strided tensors only, got ",
              tensor.layout(), " for ", name_);
  if (read || written) note_use(tensor, written);
  for (const Pair& pair : pairs_) {
    if (pair.original.is_same(tensor)) return pair.alias;
  }
  at::Tensor alias =
      tensor_over(alias_storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
  pairs_.push_back({tensor, alias});
  return alias;
}

void Aliases::take_over_resizes() {
  for (const StoragePair& pair : storages_) {
    size_t bytes = pair.alias.nbytes();
    if (!pair.is_moved() && bytes == pair.original.nbytes()) continue;
    c10::DataPtr memory = device_allocator()->allocate(bytes);
    if (shadows_ != nullptr) {
      shadows_->take_shadow(memory.get(), pair.alias);
    } else if (Block* block = Checker::get().find_block(memory.get())) {
      std::memcpy(memory.get(), pair.alias.data(), bytes);
      Checker::get().issue(current_stream(device_), name_, {{block, true, block->contents}});
    }
    pair.original.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    pair.original.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  for (const Pair& pair : pairs_) {
    const at::Tensor& now = pair.alias;
    if (now.sizes() == pair.original.sizes() && now.strides() == pair.original.strides() &&
        now.storage_offset() == pair.original.storage_offset()) {
      continue;
    }
    pair.original.unsafeGetTensorImpl()->set_sizes_and_strides(now.sizes(), now.strides(),
                                                               now.storage_offset());
  }
}

c10::DataPtr Aliases::hold(const c10::Storage& cpu_storage) {
  if (shadows_ == nullptr) return adopt(cpu_storage, device_, name_);
  bool is_empty = cpu_storage.data() == nullptr;  // of zeros that nothing holds
  c10::DataPtr memory = device_allocator()->allocate(is_empty ? 0 : cpu_storage.nbytes());
  shadows_->take_shadow(memory.get(), cpu_storage);
  return memory;
}

at::Tensor Aliases::to_cuda(const at::Tensor& result) {
  if (!result.defined()) return result;
  for (const Pair& pair : pairs_) {
    if (pair.alias.is_same(result)) return pair.original;
  }
  for (const at::Tensor& tensor : from_cpu_) {
    if (tensor.is_same(result) || tensor.is_alias_of(result)) return result;
  }
  TORCH_CHECK(result.layout() == at::kStrided, "a simulated GPU has strided tensors only, got ",
              result.layout(), " of ", name_);
  for (const StoragePair& pair : storages_) {
    if (pair.alias.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
      return tensor_over(pair.original, result, c10::DispatchKey::CUDA);
    }
  }
  c10::Storage cpu_storage = result.storage();
  size_t bytes = cpu_storage.nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, hold(cpu_storage),
                       device_allocator(), /*resizable=*/true);
  storages_.push_back({storage, cpu_storage, cpu_storage.data()});
  return tensor_over(storage, result, c10::DispatchKey::CUDA);
}

}  // namespace simulated_gpu
