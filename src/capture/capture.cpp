#include "capture/capture.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "capture/aliases.h"
#include "capture/between_graphs.h"
#include "capture/call_family.h"
#include "capture/call_site.h"
#include "capture/emit_call.h"
#include "capture/known_calls.h"
#include "capture/python_hooks.h"
#include "capture/record_queue.h"
#include "capture/wire_values.h"
#include "profiling/client.h"
#include "tensor/generator.h"

namespace dtorch {
namespace {

// Takes host index tensors along, as PyTorch's CUDA operators do.
void upload_indices(const OperatorInfo& info, c10::IValue* arguments) {
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (info.arguments[a].kind != ArgumentKind::kOptionalTensorList || !arguments[a].isList()) continue;
    c10::List<std::optional<at::Tensor>> list;
    bool changed = false;
    for (const auto& element : arguments[a].toOptionalTensorVector()) {
      const bool on_host = element && element->defined() && !on_workers(*element);
      changed = changed || on_host;
      list.push_back(on_host ? std::optional(upload(*element, 0)) : element);
    }
    if (changed) arguments[a] = std::move(list);
  }
}

// Whether an operator writes to elements of a list of which others may be brought elsewhere, although
// they share memory: PyTorch's loop reads what it wrote before. Of tensors that are whole on every
// worker it isn't known which share memory.
bool crosses_lists(const OperatorInfo& info, const CallEntry& entry, const CallKey& key,
                   const c10::IValue* arguments) {
  if (C10_LIKELY(!info.writes_list || entry.moves.empty())) return false;
  std::unordered_set<const Slot*> found;
  for (const at::Tensor* input : key.inputs) {
    if (!found.insert(&slot_of(*input).base()).second) return true;
  }
  const auto written = arguments[0].toListRef();
  return std::any_of(entry.moves.begin(), entry.moves.end(),
                     [](const InputMove& move) { return sharding_is_whole(move.from); }) &&
         std::any_of(written.begin(), written.end(), [](const c10::IValue& element) {
           return sharding_is_whole(slot_of(element.toTensor()).sharding);
         });
}

// PyTorch's warning for an out= that has elements and other sizes.
void warn_of_resizing(const OperatorInfo& info, const at::Tensor& tensor, c10::IntArrayRef sizes) {
  if (info.handle.schema().arguments().back().is_out()) at::native::resize_output_check(tensor, sizes);
}

// An in-place operator may change its argument's shape (resize_, out=).
void update_written(const OperatorInfo& info, const at::Tensor& tensor, const TensorMeta& meta) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->sizes() != c10::IntArrayRef(meta.sizes) ||
      impl->strides() != c10::IntArrayRef(meta.strides)) {
    warn_of_resizing(info, tensor, meta.sizes);
    impl->set_sizes_and_strides(meta.sizes, meta.strides, tensor.storage_offset());
    auto& aliasing = slot_of(tensor).aliasing;
    if (aliasing) aliasing->geometry = Geometry(tensor);
  }
}

// base: the tensor whose memory the output shares, or null; the entry's offset counts from
// `base_offset`.
at::Tensor make_output(const TensorMeta& meta, uint32_t slot, const at::Tensor* base,
                       int64_t base_offset, bool is_apart) {
  auto tensor = make_tensor(slot, meta.sharding, meta.dtype, meta.sizes, meta.strides,
                            meta.offset + base_offset);
  if (C10_UNLIKELY(meta.conjugate)) tensor._set_conj(true);
  if (C10_UNLIKELY(meta.negative)) tensor._set_neg(true);
  if (base) {
    add_view(*base, tensor, is_apart);
    auto& view = slot_of(tensor);
    view.memory = slot_of(*base).memory;
    if (C10_UNLIKELY(BetweenGraphs::get().is_active())) {
      std::lock_guard<SpinLock> guard(RecordQueue::lock);
      BetweenGraphs::get().add_view(slot_of(*base), view);
    }
  }
  return tensor;
}

// `position`: what the key has left out of the entry's offsets.
void push_outputs(const OperatorInfo& info, const CallEntry& entry, const Slots& slots,
                  int64_t position, bool is_apart, Stack* stack) {
  const size_t base = stack->size() - info.arguments.size();
  c10::SmallVector<c10::IValue, 4> results;
  size_t next = 0;
  for (size_t r = 0; r < entry.outputs.size(); ++r) {
    const auto& output = entry.outputs[r];
    const auto& info_r = info.returns[r];
    const at::Tensor* viewed = info_r.viewed_argument < 0
                                   ? nullptr
                                   : &(*stack)[base + info_r.viewed_argument].toTensor();
    int64_t offset = position;
    // as_strided counts from the storage if it is given an offset.
    if (viewed && !(info.absolute_offset && !(*stack)[base + 3].isNone())) {
      offset += viewed->storage_offset();
    }
    switch (output.kind) {
      case OutputKind::kTensor:
        results.emplace_back(make_output(output.tensors[0], slots[next++], viewed, offset, is_apart));
        break;
      case OutputKind::kList: {
        c10::List<at::Tensor> list;
        list.reserve(output.tensors.size());
        for (const auto& meta : output.tensors) {
          list.push_back(make_output(meta, slots[next++], viewed, offset, is_apart));
        }
        results.emplace_back(std::move(list));
        break;
      }
      case OutputKind::kWritten: {
        auto& argument = (*stack)[base + info_r.written_argument];
        update_written(info, argument.toTensor(), output.tensors[0]);
        results.push_back(std::move(argument));
        break;
      }
      case OutputKind::kUndefined: results.emplace_back(at::Tensor()); break;
      case OutputKind::kConstant: results.push_back(output.constant); break;
    }
  }
  torch::jit::drop(*stack, info.arguments.size());
  for (auto& result : results) stack->push_back(std::move(result));
}

// Gives other sizes to a dense tensor whose dims keep their order in memory.
void lay_out_as(const c10::SmallVector<int64_t, 5>& sizes, TensorMeta* meta) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return meta->strides[a] > meta->strides[b];
  });
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    meta->strides[order[k]] = stride;
    stride *= std::max<int64_t>(sizes[order[k]], 1);
  }
  meta->sizes = sizes;
}

// The outputs of an operator that only a worker can describe: every return gets a slot,
// and the workers are asked what came out.
void capture_measured(RecordQueue& queue, OperatorInfo& info, const CallKey& key,
                      const c10::IValue* arguments, uint32_t site, const c10::IValue& generator,
                      CallEntry* entry, Slots* slots) {
  entry->outputs.resize(info.returns.size());
  for (size_t r = 0; r < info.returns.size(); ++r) {
    TORCH_CHECK_NOT_IMPLEMENTED(info.returns[r].is_tensor && !info.returns[r].is_list, info.name,
                                " cannot run on the dtorch device: what it returns depends on the "
                                "data and is no tensor; call it on x.cpu()");
    auto& output = entry->outputs[r];
    output.kind = info.returns[r].written_argument >= 0 ? OutputKind::kWritten : OutputKind::kTensor;
    output.tensors.emplace_back();
  }
  if (key.sharded) work_out_sharding(info, arguments, true, entry);
  if (entry->decomposition != nullptr) return;
  std::vector<uint32_t> described;
  {
    std::lock_guard<SpinLock> guard(queue.lock);
    emit_call(queue, info, *entry, key, arguments, site, generator, slots);
  }
  size_t next = 0;
  for (size_t r = 0; r < info.returns.size(); ++r) {
    described.push_back(info.returns[r].written_argument < 0
                            ? (*slots)[next++]
                            : BetweenGraphs::slot_in(
                                  queue, slot_of(arguments[info.returns[r].written_argument].toTensor())));
  }
  std::vector<TensorMeta> metas;
  try {
    metas = describe_slots(described);
  } catch (...) {
    std::lock_guard<SpinLock> guard(queue.lock);
    for (uint32_t slot : *slots) queue.free_slot(slot, queue.generation());
    throw;
  }
  next = 0;
  c10::SmallVector<uint32_t, 8> kept;
  for (size_t r = 0; r < info.returns.size(); ++r) {
    auto& output = entry->outputs[r];
    const TensorMeta planned = output.tensors[0];
    output.tensors[0] = metas[r];
    output.tensors[0].sharding = planned.sharding;
    // A worker that holds a part describes the part.
    if (!planned.sizes.empty()) lay_out_as(planned.sizes, &output.tensors[0]);
    const auto& info_r = info.returns[r];
    if (info_r.viewed_argument >= 0 && !info.absolute_offset) {
      output.tensors[0].offset = 0;  // relative: a worker's own offsets mean nothing here
    }
    if (output.kind != OutputKind::kTensor) continue;
    const uint32_t slot = (*slots)[next++];
    if (metas[r].dtype == c10::ScalarType::Undefined) {
      output.kind = OutputKind::kUndefined;
      output.tensors.clear();
      std::lock_guard<SpinLock> guard(queue.lock);
      queue.free_slot(slot, queue.generation());
    } else {
      kept.push_back(slot);
    }
  }
  *slots = kept;
}

// Has a call that missed serve others of its family.
void learn_sizes(RecordQueue& queue, const OperatorInfo& info, const c10::IValue* arguments,
                 const CallKey& key, const CallFamily& family, const CallEntry& entry) {
  std::optional<FamilyQuestion> question;
  {
    std::lock_guard<SpinLock> guard(queue.lock);
    question = note_in_family(family, entry, counters().operators);
  }
  if (!question) return;
  auto formula = work_out_formula(info, arguments, key, family, *question);
  std::lock_guard<SpinLock> guard(queue.lock);
  keep_formula(family, *question, std::move(formula), entry);
}

}  // namespace

uint32_t current_site() {
  RawSite raw;
  int64_t site;
  while ((site = find_site(&raw)) < 0) define_site(raw);
  return static_cast<uint32_t>(site);
}

static thread_local bool executes_records = false;

void set_executes_records(bool executes) { executes_records = executes; }

static bool names_tensors(const Stack& stack, size_t num_arguments) {
  return std::any_of(stack.end() - num_arguments, stack.end(), [](const c10::IValue& value) {
    if (value.isTensor()) return on_workers(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), on_workers);
  });
}

void check_is_client() {
  TORCH_CHECK(C10_LIKELY(!executes_records), "a Python kernel used a tensor on the dtorch device: its "
              "arguments are plain tensors in the worker's memory, on x.device, and what it needs "
              "besides must be one of them");
}

CaptureCounters& counters() {
  static CaptureCounters instance;
  return instance;
}

void capture(const c10::OperatorHandle& op, Stack* stack) {
  check_is_client();
  auto& queue = RecordQueue::current();
  // Without workers, a tensor on the device is one of workers that are gone.
  if (C10_UNLIKELY(!queue.is_open())) start_runtime(names_tensors(*stack, op.schema().arguments().size()));
  queue.throttle();
  if (C10_UNLIKELY(client_timeline.is_on())) begin_issue();
  const uint32_t site = current_site();

  queue.lock.lock();
  OperatorInfo& info = operator_info(op);
  queue.lock.unlock();
  c10::IValue* arguments = stack->data() + stack->size() - info.arguments.size();
  if (C10_UNLIKELY(info.takes_host_indices)) upload_indices(info, arguments);
  if (info.writes || info.absolute_offset) join_views(info, arguments);
  if (C10_UNLIKELY(info.meta_rule != MetaRule::kMeta && info.writes)) {
    if (const auto laid = lay_out_results(info, arguments); !laid.empty()) {
      capture(op, stack);
      return lay_back(laid);
    }
  }
  const CallKey key(info, arguments);
  const uint64_t hash = key.hash();
  c10::IValue generator;
  if (C10_UNLIKELY(info.draws())) {
    if (info.fills_randomly) check_bounds(info, arguments);
    generator = draw(info.adds_generator ? c10::IValue() : arguments[info.generator_argument]);
  }

  MetaRule rule = info.meta_rule;
  if (C10_UNLIKELY(rule == MetaRule::kDynamic && info.takes_host_indices && !has_mask(info, arguments))) {
    rule = MetaRule::kMeta;
  }

  Slots slots;
  bool is_apart = false, by_elements = false;
  CallEntry* entry = nullptr;
  const auto finish = [&](const CallEntry* found) {
    if (C10_UNLIKELY(by_elements)) return run_by_elements(info, stack);
    if (C10_UNLIKELY(found->decomposition != nullptr)) {
      // A copy: the operators it calls may make room among the entries.
      const auto decomposition = found->decomposition;
      return decomposition(stack);
    }
    push_outputs(info, *found, slots, key.position, is_apart, stack);
  };
  {
    std::lock_guard<SpinLock> guard(queue.lock);
    entry = find_entry(key, hash);
    by_elements = entry != nullptr && crosses_lists(info, *entry, key, arguments);
    if (C10_LIKELY(entry != nullptr && rule != MetaRule::kDynamic && entry->decomposition == nullptr &&
                   !by_elements)) {
      is_apart = emit_call(queue, info, *entry, key, arguments, site, generator, &slots);
      counters().operators += 1;
    }
  }
  if (C10_UNLIKELY(rule == MetaRule::kDynamic)) {
    // The key is kept all the same: what was checked once need not be again.
    if (entry == nullptr && !info.is_users) check_on_host(info, arguments);
    CallEntry measured;
    capture_measured(queue, info, key, arguments, site, generator, &measured, &slots);
    push_outputs(info, measured, slots, 0, false, stack);
    std::lock_guard<SpinLock> guard(queue.lock);
    counters().operators += 1;
    if (entry == nullptr) {
      counters().misses += 1;
      auto checked = std::make_unique<CallEntry>();
      checked->key = key.words;
      keep_entry(hash, std::move(checked));
    }
    return;
  }
  if (C10_UNLIKELY(entry == nullptr)) {
    for (const at::Tensor* input : key.inputs) check_alive(slot_of(*input));
    std::optional<CallFamily> family;
    if (rule == MetaRule::kMeta && !(info.takes_host_indices && has_mask(info, arguments))) {
      family.emplace(key, info);
    }
    if (family) {
      std::unique_lock<SpinLock> guard(queue.lock);
      if (auto fresh = find_in_family(*family)) {
        guard.unlock();
        check_new_sizes(info, arguments, *fresh);
        fresh->key = key.words;
        guard.lock();
        entry = keep_entry(hash, std::move(fresh));
        note_call(info, key, *entry);
        by_elements = crosses_lists(info, *entry, key, arguments);
        if (entry->decomposition == nullptr && !by_elements) {
          is_apart = emit_call(queue, info, *entry, key, arguments, site, generator, &slots);
        }
        counters().operators += 1;
        counters().new_sizes += 1;
      }
    }
    if (entry != nullptr) return finish(entry);
    auto fresh = std::make_unique<CallEntry>();
    fresh->key = key.words;
    Resized resized;
    const bool measured =
        rule != MetaRule::kMeta || !infer_outputs(info, arguments, fresh.get(), &resized);
    if (measured && info.is_users && rule == MetaRule::kMeta) {
      // It has no meta function, and what it returns may depend on the data.
      queue.lock.lock();
      info.meta_rule = MetaRule::kDynamic;
      queue.lock.unlock();
      return capture(op, stack);
    }
    // Workers that have the whole tensor resize it as the operator runs. What is cut, or not
    // returned, is brought to its size before.
    if (!resized.empty() && (key.sharded || info.returns.empty())) {
      for (const auto& [tensor, sizes] : resized) {
        warn_of_resizing(info, tensor, sizes);
        tensor.resize_(sizes);
      }
      return capture(op, stack);
    }
    if (key.position != 0 && !measured) {
      for (auto& output : fresh->outputs) {
        for (auto& meta : output.tensors) meta.offset -= key.position;
      }
    }
    if (measured) {
      capture_measured(queue, info, key, arguments, site, generator, fresh.get(), &slots);
    } else if (key.sharded) {
      work_out_sharding(info, arguments, false, fresh.get());
    }
    if (family && !measured && resized.empty()) learn_sizes(queue, info, arguments, key, *family, *fresh);
    std::lock_guard<SpinLock> guard(queue.lock);
    entry = keep_entry(hash, std::move(fresh));
    note_call(info, key, *entry);
    by_elements = crosses_lists(info, *entry, key, arguments);
    if (!measured && entry->decomposition == nullptr && !by_elements) {
      is_apart = emit_call(queue, info, *entry, key, arguments, site, generator, &slots);
    }
    counters().operators += 1;
    counters().misses += 1;
  }
  finish(entry);
}

}  // namespace dtorch
