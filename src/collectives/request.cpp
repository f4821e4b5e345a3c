#include "collectives/request.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <cassert>
#include <sstream>

#include "device/pinned.h"

namespace dtorch {
namespace {

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Contiguous memory of the tensor's size that the CPU can use: pinned for one on an accelerator.
at::Tensor stand_in_for(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  }
  return pinned(tensor.device().type(), tensor.sizes(), c10::contiguous_strides(tensor.sizes()),
                tensor.scalar_type());
}

// Reading the address through the const accessor leaves a copy-on-write tensor shared;
// only outputs are materialized.
char* address_to_read(const at::Tensor& tensor) {
  return const_cast<char*>(static_cast<const char*>(tensor.const_data_ptr()));
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const char* a_begin = address_to_read(a);
  const char* b_begin = address_to_read(b);
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

std::string Caller::text() const {
  std::ostringstream text;
  text << collective << " (" << backend << ", rank " << rank << " of " << size << "): ";
  return text.str();
}

Request::Request(Caller caller, Kind kind, c10d::OpType op_type,
                 std::chrono::milliseconds timeout)
    : caller(caller), kind(kind), op_type(op_type), timeout(timeout) {}

at::Tensor Request::dense_copy(const at::Tensor& tensor) const {
  at::AutoDispatchBelowADInplaceOrView guard;
  // A copy off an accelerator that is not waited for may conjugate before the data has come.
  return stand_in_for(tensor).copy_(
      tensor.is_cpu() ? tensor : tensor.resolve_conj().resolve_neg(), /*non_blocking=*/true);
}

void Request::add(std::vector<Added>& list, std::vector<Block>& blocks, const at::Tensor& dense,
                  const std::vector<int64_t>& counts) {
  list.push_back({dense, blocks.size(), counts.size()});
  char* data = address_to_read(dense);
  for (int64_t count : counts) {
    blocks.push_back({data, count});
    data += count * item_size;
  }
}

void Request::reads_split(const at::Tensor& tensor, const std::vector<int64_t>& counts) {
  dtype = tensor.scalar_type();
  item_size = static_cast<int64_t>(tensor.element_size());
  add(inputs_, in, is_dense(tensor) ? tensor : dense_copy(tensor), counts);
}

void Request::writes_split(const at::Tensor& tensor, const std::vector<int64_t>& counts) {
  dtype = tensor.scalar_type();
  item_size = static_cast<int64_t>(tensor.element_size());
  results.push_back(tensor);
  if (is_dense(tensor)) {
    tensor.mutable_data_ptr();
    add(outputs_, out, tensor, counts);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor stand_in = stand_in_for(tensor);
  staged_.push_back({stand_in, tensor});
  add(outputs_, out, stand_in, counts);
}

void Request::reads(const at::Tensor& tensor, int64_t pieces) {
  reads_split(tensor, std::vector<int64_t>(pieces, tensor.numel() / pieces));
}

void Request::writes(const at::Tensor& tensor, int64_t pieces) {
  writes_split(tensor, std::vector<int64_t>(pieces, tensor.numel() / pieces));
}

void Request::updates(const at::Tensor& tensor) {
  dtype = tensor.scalar_type();
  item_size = static_cast<int64_t>(tensor.element_size());
  results.push_back(tensor);
  at::Tensor dense = tensor;
  if (is_dense(tensor)) {
    tensor.mutable_data_ptr();
  } else {
    dense = dense_copy(tensor);
    staged_.push_back({dense, tensor});
  }
  add(inputs_, in, dense, {dense.numel()});
  add(outputs_, out, dense, {dense.numel()});
}

void Request::separate() {
  for (Added& input : inputs_) {
    for (const Added& output : outputs_) {
      if (!overlap(input.dense, output.dense)) continue;
      const char* old_data = address_to_read(input.dense);
      input.dense = dense_copy(input.dense);
      char* new_data = address_to_read(input.dense);
      for (size_t i = 0; i < input.num_blocks; ++i) {
        Block& block = in[input.first_block + i];
        block.data = new_data + (block.data - old_data);
      }
      break;
    }
  }
}

void Request::finish() {
  at::AutoDispatchBelowADInplaceOrView guard;
  for (auto& [stand_in, tensor] : staged_) tensor.copy_(stand_in);
  staged_.clear();
  inputs_.clear();
  outputs_.clear();
  in.clear();
  out.clear();
}

}  // namespace dtorch
