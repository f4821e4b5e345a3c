#include "capture/between_graphs.h"

#include <algorithm>

namespace dtorch {

BetweenGraphs& BetweenGraphs::get() {
  // Never destroyed: tensors may outlive every static.
  static auto* instance = new BetweenGraphs;
  return *instance;
}

void BetweenGraphs::begin(uint32_t graph) {
  if (graph == 0) {
    begun_.fill(0);
  } else {
    is_active_ = true;
  }
  ++begun_[graph];
  std::erase_if(waited_, [graph](const auto& item) {
    return item.first.first == graph || item.first.second == graph;
  });
}

bool BetweenGraphs::Memory::is_idle() const {
  return written.is_over() && std::ranges::all_of(read, [](const Touch& touch) { return touch.is_over(); });
}

void BetweenGraphs::wait(RecordQueue& queue, const Touch& touch) {
  if (touch.queue == &queue || touch.is_over()) return;
  auto& waited = waited_[{queue.graph, touch.queue->graph}];
  if (waited >= touch.position) return;
  waited = touch.position;
  Writer writer = queue.reserve(kHeaderWords + 3);
  writer.begin(Kind::kWait, touch.queue->graph, begun_[touch.queue->graph], 0);
  writer.int_value(static_cast<int64_t>(touch.position));
  queue.commit(writer.end());
}

uint32_t BetweenGraphs::use(RecordQueue& queue, Slot& slot, bool writes) {
  const bool is_foreign = slot.home != &queue;
  auto found = memories_.find(slot.memory);
  if (found == memories_.end()) {
    if (!is_foreign) return slot.id;
    found = memories_.try_emplace(slot.memory).first;
  }
  auto& memory = found->second;
  track(memory, slot);
  const uint32_t id = is_foreign ? bring(queue, slot) : slot.id;
  wait(queue, memory.written);
  if (writes) {
    for (const auto& touch : memory.read) wait(queue, touch);
  }
  noted_.emplace_back(slot.memory, writes);
  return id;
}

void BetweenGraphs::note(RecordQueue& queue) {
  const Touch touch{&queue, queue.generation(), queue.issued()};
  for (const auto& [number, writes] : noted_) {
    auto& memory = memories_.at(number);
    if (writes) {
      memory.written = touch;
      memory.read.clear();
      continue;
    }
    const auto same = std::ranges::find(memory.read, &queue, &Touch::queue);
    if (same == memory.read.end()) {
      memory.read.push_back(touch);
    } else {
      *same = touch;
    }
  }
  noted_.clear();
}

const Import* BetweenGraphs::import_in(const RecordQueue& queue, const Slot& slot) {
  for (const auto& import : slot.imports) {
    if (import.home == &queue && import.generation == queue.generation()) return &import;
  }
  return nullptr;
}

uint32_t BetweenGraphs::slot_in(const RecordQueue& queue, const Slot& slot) {
  const Import* known = import_in(queue, slot);
  return known ? known->id : slot.id;
}

uint32_t BetweenGraphs::bring(RecordQueue& queue, Slot& slot) {
  if (const Import* known = import_in(queue, slot)) return known->id;
  const uint64_t ticket = next_ticket_++;
  Writer exporting = slot.home->reserve(kHeaderWords + 3);
  exporting.begin(Kind::kExport, 0, slot.id, 0);
  exporting.int_value(static_cast<int64_t>(ticket));
  slot.home->commit(exporting.end());
  const Import import{&queue, queue.generation(), queue.take_slot()};
  Writer writer = queue.reserve(kHeaderWords + 6);
  writer.begin(Kind::kImport, slot.home->graph, import.id, 0);
  writer.int_value(static_cast<int64_t>(ticket));
  writer.int_value(static_cast<int64_t>(slot.home->issued()));
  queue.commit(writer.end());
  slot.imports.push_back(import);
  ++queue.num_imports;
  return import.id;
}

void BetweenGraphs::track(Memory& memory, Slot& slot) {
  if (slot.is_tracked) return;
  slot.is_tracked = true;
  ++memory.num_slots;
}

void BetweenGraphs::add_view(const Slot& base, Slot& view) {
  if (auto found = memories_.find(base.memory); found != memories_.end()) track(found->second, view);
}

void BetweenGraphs::forget(const Slot& slot) {
  if (!slot.is_tracked) return;
  auto& memory = memories_.at(slot.memory);
  if (--memory.num_slots > 0) return;
  leaving_.push_back(slot.memory);
  if (leaving_.size() >= 64) sweep();
}

// What has no slot any more is forgotten once no graph has to be waited for.
void BetweenGraphs::sweep() {
  std::erase_if(leaving_, [this](uint64_t number) {
    auto found = memories_.find(number);
    if (found == memories_.end() || found->second.num_slots > 0) return true;
    if (!found->second.is_idle()) return false;
    memories_.erase(found);
    return true;
  });
}

}  // namespace dtorch
