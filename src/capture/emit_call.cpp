#include "capture/emit_call.h"

#include <algorithm>
#include <map>

#include "capture/between_graphs.h"
#include "capture/call_site.h"
#include "capture/capture.h"
#include "capture/definitions.h"
#include "capture/known_calls.h"
#include "capture/wire_values.h"
#include "wire/flight.h"

namespace dtorch {
namespace {

void define_operator(OperatorInfo& info) {
  auto& definitions = Definitions::get();
  definitions.add(kHeaderWords + 4 + (info.name.size() + info.overload.size()) / 4, [&](Writer& writer) {
    writer.begin(Kind::kDefineOperator, 2, info.number, 0);
    writer.string(info.name);
    writer.string(info.overload);
  });
  info.defined_for = definitions.generation();
  note_operator(info);
  if (flight_noted_by_client()) flight_record().define_op(info.number, info.name);
}

void emit_redistribute(RecordQueue& queue, uint32_t input, uint32_t output,
                       const at::Tensor& tensor, uint32_t from, uint32_t to, bool into,
                       uint32_t site) {
  Writer writer = queue.reserve(redistribute_words(tensor));
  write_redistribute(writer, input, output, tensor, from, to, into, site);
  queue.commit(writer.end());
}

// An input as the call has it; `restore`: some place that it stands at is written to.
struct Moved {
  InputMove move;
  uint32_t slot;
  bool restore;
};

Slots slots_of_inputs(const CallKey& key) {
  Slots slots;
  for (const at::Tensor* input : key.inputs) slots.push_back(slot_of(*input).id);
  return slots;
}

// The slots by which this queue's workers know the inputs, where there are several graphs.
Slots use_inputs(RecordQueue& queue, const OperatorInfo& info, const CallKey& key, const c10::IValue* arguments) {
  Slots slots;
  size_t next = 0;
  const auto use = [&](const at::Tensor& tensor, bool writes) {
    if (next == key.inputs.size() || !on_workers(tensor)) return;
    slots.push_back(BetweenGraphs::get().use(queue, slot_of(*key.inputs[next++]), writes));
  };
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    const auto& value = arguments[a];
    if (value.isTensor()) {
      use(value.toTensor(), info.arguments[a].written);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) use(element.toTensor(), info.arguments[a].written);
      }
    }
  }
  TORCH_INTERNAL_ASSERT(next == key.inputs.size());
  return slots;
}

}  // namespace

bool emit_call(RecordQueue& queue, OperatorInfo& info, const CallEntry& entry, const CallKey& key,
               const c10::IValue* arguments, uint32_t site, const c10::IValue& generator_pair,
               Slots* outputs) {
  static Definitions& definitions = Definitions::get();
  static BetweenGraphs& between_graphs = BetweenGraphs::get();
  for (const at::Tensor* input : key.inputs) check_alive(slot_of(*input));
  if (C10_UNLIKELY(info.defined_for != definitions.generation())) define_operator(info);
  site = site_on_workers(site);
  definitions.bring(queue);
  const Slots named = C10_UNLIKELY(between_graphs.is_active()) ? use_inputs(queue, info, key, arguments)
                                                               : slots_of_inputs(key);
  Slots inputs = named;
  if (flight_noted_by_client()) flight_record().note(info.number, site);
  c10::SmallVector<Moved, 8> moved;
  std::map<std::pair<uint32_t, uint32_t>, size_t> written;
  const bool restores = std::any_of(entry.moves.begin(), entry.moves.end(),
                                    [](const InputMove& move) { return move.restore; });
  for (const auto& move : entry.moves) {
    // Of a tensor that is given twice one copy is moved: what is written to it in one place is
    // read in the other.
    if (C10_UNLIKELY(restores)) {
      auto [found, added] = written.emplace(std::pair(inputs[move.input], move.to), moved.size());
      if (!added) {
        moved[found->second].restore |= move.restore;
        inputs[move.input] = moved[found->second].slot;
        continue;
      }
    }
    moved.push_back({move, queue.take_slot(), move.restore});
    emit_redistribute(queue, inputs[move.input], moved.back().slot, *key.inputs[move.input],
                      move.from, move.to, false, site);
    inputs[move.input] = moved.back().slot;
  }

  size_t bound = key.record_words + entry.outputs.size();
  for (const auto& output : entry.outputs) bound += 2 * output.tensors.size();
  for (const auto& [argument, output] : entry.local_sizes) {
    bound += 2 + 2 * entry.outputs[output].tensors[0].sizes.size();
  }
  for (const auto& [argument, output] : entry.local_strides) {
    bound += 2 + 4 * entry.outputs[output].tensors[0].sizes.size();
  }
  const TensorMeta* made = entry.outputs.empty() || entry.outputs[0].tensors.empty()
                               ? nullptr
                               : &entry.outputs[0].tensors[0];
  // What is still to be measured has no sizes, and runs whole.
  if (made != nullptr && made->dtype == c10::ScalarType::Undefined) made = nullptr;
  if (C10_UNLIKELY(info.draws())) bound += 6 + (made ? 2 * made->sizes.size() : 0);
  Writer writer = queue.reserve(bound);
  writer.begin(Kind::kOperator,
               static_cast<uint32_t>(info.arguments.size() + info.adds_generator) |
                   (key.sharded ? kShardedOperator : 0),
               info.number, site);
  writer.word(entry.number);
  size_t next_input = 0;
  auto local = entry.local_sizes.begin();
  auto strided = entry.local_strides.begin();
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (C10_UNLIKELY(local != entry.local_sizes.end() && local->first == a)) {
      const auto& meta = entry.outputs[local->second].tensors[0];
      writer.tag(Tag::kLocalSizes, static_cast<uint32_t>(meta.sizes.size()));
      writer.word(meta.sharding);
      writer.raw_ints(meta.sizes);
      ++local;
      continue;
    }
    if (C10_UNLIKELY(strided != entry.local_strides.end() && strided->first == a)) {
      const auto& meta = entry.outputs[strided->second].tensors[0];
      writer.tag(Tag::kLocalStrides, static_cast<uint32_t>(meta.sizes.size()));
      writer.word(meta.sharding);
      writer.raw_ints(meta.sizes);
      writer.raw_ints(meta.strides);
      ++strided;
      continue;
    }
    if (C10_UNLIKELY(a == info.generator_argument)) {
      write_generator(writer, generator_pair, made);
      continue;
    }
    write_argument(writer, info.arguments[a].kind, arguments[a], inputs, &next_input);
  }
  if (C10_UNLIKELY(info.adds_generator)) write_generator(writer, generator_pair, made);
  for (const auto& output : entry.outputs) {
    if (output.kind == OutputKind::kTensor) {
      outputs->push_back(queue.take_slot());
      writer.tag(Tag::kOutput, outputs->back());
      if (key.sharded) writer.word(output.tensors[0].sharding);
    } else if (output.kind == OutputKind::kList) {
      writer.tag(Tag::kOutputList, static_cast<uint32_t>(output.tensors.size()));
      for (size_t i = 0; i < output.tensors.size(); ++i) {
        outputs->push_back(queue.take_slot());
        writer.word(outputs->back());
        if (key.sharded) writer.word(output.tensors[i].sharding);
      }
    } else {
      writer.tag(Tag::kOutputIgnored);
    }
  }
  queue.commit(writer.end());

  bool is_apart = false;
  for (auto& [move, moved_slot, restore] : moved) {
    auto& slot = slot_of(*key.inputs[move.input]);
    if (restore) {
      emit_redistribute(queue, moved_slot, named[move.input], *key.inputs[move.input], move.to,
                        move.from, true, site);
    }
    // A partial sum that was reduced once stays reduced, unless a view still needs the sum.
    if (!restore && slot.sharding == move.from && move.only_reduces && slot.is_alone() &&
        slot.home == &queue) {
      std::swap(slot.id, moved_slot);
      slot.sharding = move.to;
    } else {
      is_apart = is_apart || move.input == 0;
    }
    queue.free_slot_locked(moved_slot);
  }
  if (C10_UNLIKELY(between_graphs.is_active())) between_graphs.note(queue);
  return is_apart;
}

uint32_t site_on_workers(uint32_t site) {
  static Definitions& definitions = Definitions::get();
  static std::vector<bool> defined{true};
  static uint32_t generation = 0;
  if (generation != definitions.generation()) {
    defined = {true};
    generation = definitions.generation();
  }
  if (site < defined.size() && defined[site]) return site;
  if (site >= defined.size()) defined.resize(site + 1);
  const std::string text = site_text(site);
  definitions.add(kHeaderWords + 2 + text.size() / 4, [&](Writer& writer) {
    writer.begin(Kind::kDefineSite, 1, site, 0);
    writer.string(text);
  });
  defined[site] = true;
  if (flight_noted_by_client()) flight_record().define_site(site, text);
  return site;
}

}  // namespace dtorch
