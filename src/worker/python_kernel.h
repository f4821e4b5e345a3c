// The C++ side of a Python kernel's record.
#pragma once

#include "worker/failure.h"
#include "worker/slots.h"

namespace dtorch {

struct KernelOutput {
  uint32_t slot = 0;
  int dtype = 0;
  uint32_t sharding = 0;
  std::vector<int64_t> sizes, local_sizes, local_offsets;
};

struct KernelCall {
  std::string name, packed;
  std::vector<KernelOutput> outputs;
  bool absent = false;  // this worker has no part in it
};

inline KernelCall read_kernel_call(WorkerState& state, Reader& reader, uint32_t count) {
  KernelCall call;
  call.name = reader.string();
  call.packed = reader.string();
  for (uint32_t i = 0; i < count; ++i) {
    KernelOutput output;
    output.slot = reader.expect(Tag::kOutput);
    state.slot(output.slot);  // refuses a wild number before anything runs
    output.dtype = static_cast<int>(reader.dtype());
    const auto sizes = reader.int_list();
    output.sizes.assign(sizes.begin(), sizes.end());
    output.sharding = reader.word();
    output.local_sizes = output.sizes;
    output.local_offsets.assign(sizes.size(), 0);
    if (output.sharding != 0) {
      const auto sharding = state.sharding(output.sharding);
      if (const auto* member = state.member(*sharding->mesh)) {
        const auto& shape = sharding->mesh->shape;
        check_placements(sizes.size(), shape, sharding->placements);
        output.local_sizes = local_sizes(sizes, shape, sharding->placements, member->coordinate);
        output.local_offsets = local_offsets(sizes, shape, sharding->placements, member->coordinate);
      } else {
        call.absent = true;
      }
    }
    call.outputs.push_back(std::move(output));
  }
  if (call.absent) {
    for (const auto& output : call.outputs) put_tensor(state, output.slot, {}, output.sharding);
  }
  return call;
}

inline void store_kernel_failure(WorkerState& state, const KernelCall& call, const std::string& text) {
  const auto failure = make_failure(state, text);
  for (const auto& output : call.outputs) put_failure(state, output.slot, failure);
}

inline void store_kernel_outputs(WorkerState& state, const KernelCall& call,
                                 const std::vector<at::Tensor>& results) {
  std::string wrong;
  if (results.size() != call.outputs.size()) {
    wrong = std::to_string(results.size()) + " tensors returned, expected " +
            std::to_string(call.outputs.size());
  }
  for (size_t i = 0; wrong.empty() && i < results.size(); ++i) {
    const auto& output = call.outputs[i];
    if (results[i].layout() != c10::kStrided) {
      wrong = "output " + std::to_string(i) + " is not strided";
    } else if (results[i].sizes() != c10::IntArrayRef(output.local_sizes) ||
        static_cast<int>(results[i].scalar_type()) != output.dtype) {
      wrong = "output " + std::to_string(i) + " is " + described(results[i], 0) + ", expected " +
              c10::toString(static_cast<c10::ScalarType>(output.dtype)) +
              c10::str(c10::IntArrayRef(output.local_sizes)) + " on this worker";
    }
  }
  if (!wrong.empty()) {
    store_kernel_failure(state, call, "kernel " + call.name + ": " + wrong);
    return;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    put_tensor(state, call.outputs[i].slot, results[i].detach().to(state.device), call.outputs[i].sharding);
  }
}

}  // namespace dtorch
