#include "capture/known_calls.h"

#include <deque>

#include "capture/record_queue.h"

namespace dtorch {
namespace {

constexpr size_t kMostCalls = 1 << 16;

struct Known {
  uint32_t first = 1;  // number of the first that is kept
  std::deque<std::shared_ptr<const KnownCall>> calls;
  std::vector<std::string> operators;  // by number
};

Known& known() {
  static auto* instance = new Known;
  return *instance;
}

}  // namespace

void note_operator(const OperatorInfo& info) {
  auto& names = known().operators;
  if (info.number >= names.size()) names.resize(info.number + 64);
  names[info.number] = info.overload.empty() ? info.name : info.name + "." + info.overload;
}

void note_call(const OperatorInfo& info, const CallKey& key, const CallEntry& entry) {
  auto& all = known();
  auto call = std::make_shared<KnownCall>();
  note_operator(info);
  call->name = all.operators[info.number];
  for (const at::Tensor* input : key.inputs) {
    TensorMeta meta;
    meta.sizes.assign(input->sizes().begin(), input->sizes().end());
    meta.strides.assign(input->strides().begin(), input->strides().end());
    meta.offset = input->storage_offset();
    meta.dtype = input->scalar_type();
    meta.sharding = slot_of(*input).sharding;
    call->inputs.push_back(std::move(meta));
  }
  for (const auto& move : entry.moves) call->inputs[move.input].sharding = move.to;
  call->outputs = entry.outputs;
  while (all.first + all.calls.size() < entry.number) all.calls.emplace_back();
  all.calls.push_back(std::move(call));
  if (all.calls.size() > kMostCalls) {
    all.calls.pop_front();
    ++all.first;
  }
}

std::shared_ptr<const KnownCall> known_call(uint32_t number) {
  std::lock_guard<SpinLock> guard(RecordQueue::lock);
  const auto& all = known();
  if (number < all.first || number - all.first >= all.calls.size()) return nullptr;
  return all.calls[number - all.first];
}

uint32_t number_operator(const std::string& name, const std::string& overload) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::lock_guard<SpinLock> guard(RecordQueue::lock);
  const auto& info = operator_info(handle);
  note_operator(info);
  return info.number;
}

bool forget_calls(const std::string& name, const std::string& overload) {
  std::lock_guard<SpinLock> guard(RecordQueue::lock);
  return forget_operator(name, overload);
}

std::string operator_name(uint32_t number) {
  std::lock_guard<SpinLock> guard(RecordQueue::lock);
  const auto& operators = known().operators;
  return number < operators.size() ? operators[number] : std::string();
}

}  // namespace dtorch
