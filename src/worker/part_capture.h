// Makes a graph of the device of a part of a plan: runs its records while a stream is captured, and notes what they
// would have done.
//
// A graph holds addresses. Inputs that lie somewhere else from run to run have memory of the part's own, where the
// graph has them; what it makes lies in memory of the graph's.
#pragma once

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "device/streams.h"
#include "worker/bound_operator.h"

namespace dtorch {

// A tensor's metadata.
inline at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

inline bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// A tensor in some memory, so many bytes from its beginning.
inline at::Tensor tensor_over(const c10::Storage& memory, int64_t offset, const at::Tensor& like) {
  auto made = at::empty({0}, like.options().device(memory.device()));
  made.set_(memory, offset / static_cast<int64_t>(like.element_size()), like.sizes(), like.strides());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

inline int64_t byte_offset(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

class PartAccess {
 public:
  PartAccess(WorkerState& state, WorkerPlan& plan, CapturedPart& part) : state_(state), plan_(plan), part_(part) {}

 protected:
  SlotEntry& entry(uint32_t tensor) { return state_.slots[plan_.slots[tensor]]; }
  const uint32_t* words_of(const Place& place) {
    const auto& window = plan_.stretch_of(place).window;
    return window.words().data() + window.offset(place.record);
  }
  bool is_operator(const Place& place) { return static_cast<Kind>(words_of(place)[1] & 0xffff) == Kind::kOperator; }
  BoundOperator& bound(const Place& place) { return plan_.stretch_of(place).operators[place.record]; }

  // Whether inputs that are copied share no memory with what the part writes: that would show in a run of its
  // records.
  bool copies_keep_apart() {
    struct Use {
      const c10::StorageImpl* storage;
      bool is_copied, is_written;
    };
    std::vector<Use> uses;
    bool any_copied = false;
    for (const auto& input : part_.inputs) {
      const auto* storage = storage_of(entry(input.tensor).tensor);
      if (!input.is_read || storage == nullptr) continue;
      uses.push_back({storage, input.own.defined(), input.is_written});
      any_copied |= input.own.defined();
    }
    if (!any_copied) return true;
    std::ranges::sort(uses, std::less<>(), &Use::storage);
    for (size_t begin = 0, end = 0; begin < uses.size(); begin = end) {
      bool is_copied = false, is_written = false;
      for (; end < uses.size() && uses[end].storage == uses[begin].storage; ++end) {
        is_copied |= uses[end].is_copied;
        is_written |= uses[end].is_written;
      }
      if (end - begin > 1 && is_copied && is_written) return false;
    }
    return true;
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  CapturedPart& part_;
};

class PartCapture : PartAccess {
 public:
  using PartAccess::PartAccess;

  // False: nothing has come of it.
  bool run() {
    note_slots();
    auto& capture = state_.streams.capture();
    const auto& compute = state_.streams.compute();
    bool is_graph = prepare();
    if (is_graph) {
      const std::lock_guard<std::mutex> guard(capture.mutex);
      DeviceStreams::order(capture.stream, compute);
      is_graph = capture_on(capture.stream);
      DeviceStreams::order(compute, capture.stream);
    }
    if (is_graph) is_graph = note_effects();
    for (const auto& memory : part_.made) DeviceStreams::keep_for(compute, memory);
    for (auto& [slot, was] : before_) state_.slots[slot] = std::move(was);
    state_.stack.clear();
    if (is_graph) is_graph = copies_keep_apart();
    if (!is_graph) part_.forget_graph();
    return is_graph;
  }

  // The record that could not be captured, if it was one.
  const std::optional<Place>& culprit() const { return culprit_; }

 private:
  void note_slots() {
    for (const auto& place : part_.places) {
      const auto& stretch = plan_.stretch_of(place);
      const auto& window = stretch.window;
      for (uint32_t w = window.offset(place.record); w < window.offset(place.record + 1); ++w) {
        if (!is_slot(window.kind(w))) continue;
        const uint32_t slot = plan_.slots[stretch.tensors[window.tensor(w)]];
        if (seen_.insert(slot).second) before_.emplace_back(slot, state_.slot(slot));
      }
    }
  }

  // False where there is no memory for copies of inputs.
  bool prepare() {
    try {
      for (auto& input : part_.inputs) prepare(&input);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  void prepare(CapturedPart::Input* input) {
    const at::Tensor tensor = entry(input->tensor).tensor;
    if (!input->is_read) return;
    input->data = tensor.defined() ? tensor.const_data_ptr() : nullptr;
    input->like = without_memory(tensor);
    if (!input->moves || !tensor.defined()) {
      input->own = at::Tensor();
      return;
    }
    if (!input->own.defined() || !are_alike(input->own, tensor)) {
      input->own = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
      if (tensor.is_conj()) input->own._set_conj(true);
      if (tensor.is_neg()) input->own._set_neg(true);
    }
    entry(input->tensor).tensor = input->own;
  }

  // What is raised is told when the records run by themselves.
  bool capture_on(const c10::Stream& stream) {
    const c10::StreamGuard guard(stream);
    bool has_run = false;
    try {
      state_.graph_maker->begin();
    } catch (const std::exception&) {
      return false;
    }
    part_.num_operators = 0;
    for (size_t i = 0; i < part_.places.size(); ++i) {
      has_run = issue(i);
      if (has_run) continue;
      culprit_ = part_.places[i];
      break;
    }
    try {
      part_.graph = state_.graph_maker->end();
    } catch (const std::exception&) {
      return false;
    }
    return has_run;
  }

  bool issue(size_t i) {
    const auto& place = part_.places[i];
    if (is_operator(place)) {
      note_written(place);
      ++part_.num_operators;
    }
    try {
      return run_unguarded(state_, plan_, plan_.stretch_of(place), place.record, i, &state_.stack);
    } catch (const std::exception&) {
      return false;
    }
  }

  void note_written(const Place& place) {
    const auto& schema = state_.op(words_of(place)[2]).handle->schema();
    // Its schema does not say that it writes its running statistics.
    const bool normalizes = schema.name() == "aten::native_batch_norm" || schema.name() == "aten::cudnn_batch_norm";
    const auto note = [&](uint32_t argument, uint32_t tensor) {
      const auto* alias = schema.arguments()[argument].alias_info();
      const bool writes = (alias != nullptr && alias->isWrite()) || (normalizes && (argument == 3 || argument == 4));
      if (writes && tensor != Window::kNone) written_.insert(storage_of(entry(tensor).tensor));
    };
    for (const auto& [argument, tensor] : bound(place).tensors) note(argument, tensor);
    for (const auto& list : bound(place).lists) {
      for (uint32_t tensor : list.tensors) note(list.argument, tensor);
    }
  }

  // What the part has made and freed. False: another run could not have the same.
  bool note_effects() {
    part_.freed.clear();
    part_.made.clear();
    part_.outputs.clear();
    std::unordered_map<uint32_t, const SlotEntry*> known;
    for (const auto& [slot, was] : before_) known[slot] = &was;
    std::unordered_map<const c10::StorageImpl*, size_t> inputs, made;
    std::unordered_set<uint32_t> outside;
    for (size_t i = 0; i < part_.inputs.size(); ++i) {
      auto& input = part_.inputs[i];
      const auto& tensor = input.own.defined() ? input.own : known.at(plan_.slots[input.tensor])->tensor;
      input.alias = inputs.emplace(storage_of(tensor), i).first->second;
      input.is_shown = false;
      input.is_written = input.is_read && written_.contains(storage_of(tensor));
      outside.insert(input.tensor);
    }
    std::unordered_set<uint32_t> seen;
    const auto note = [&](uint32_t tensor) {
      const auto& now = entry(tensor);
      if (now.state != SlotEntry::State::kTensor || !seen.insert(tensor).second) return true;
      CapturedPart::Output output{tensor, now.sharding, now.maker, 0, false, 0, without_memory(now.tensor)};
      if (now.tensor.defined()) {
        if (!now.tensor.has_storage() || now.tensor.device() != state_.device) return false;
        const auto* storage = storage_of(now.tensor);
        output.offset = byte_offset(now.tensor);
        if (const auto found = inputs.find(storage); found != inputs.end()) {
          auto& input = part_.inputs[found->second];
          input.is_shown = true;
          output.source = found->second;
          output.shows_input = true;
          output.offset -= byte_offset(input.own.defined() ? input.own : known.at(plan_.slots[input.tensor])->tensor);
        } else {
          const auto [at, is_new] = made.emplace(storage, part_.made.size());
          if (is_new) part_.made.push_back(bytes_of(now.tensor));
          output.source = at->second;
        }
      }
      part_.outputs.push_back(std::move(output));
      return true;
    };
    for (const auto& place : part_.places) {
      const auto& stretch = plan_.stretch_of(place);
      const auto& window = stretch.window;
      for (uint32_t w = window.offset(place.record); w < window.offset(place.record + 1); ++w) {
        if (!is_slot(window.kind(w))) continue;
        const uint32_t tensor = stretch.tensors[window.tensor(w)];
        if (is_definition(window.kind(w))) {
          if (!note(tensor)) return false;
        } else if (!is_operator(place) && outside.contains(tensor)) {
          part_.freed.push_back(tensor);  // or moved
        }
      }
    }
    return true;
  }

  static at::Tensor bytes_of(const at::Tensor& tensor) {
    auto bytes = at::empty({0}, tensor.options().dtype(at::kByte));
    return bytes.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
  }

  std::vector<std::pair<uint32_t, SlotEntry>> before_;  // by slot
  std::unordered_set<uint32_t> seen_;
  std::unordered_set<const c10::StorageImpl*> written_;
  std::optional<Place> culprit_;
};

}  // namespace dtorch
