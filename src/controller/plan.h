// A window that workers hold, and how far the program follows it at the moment.
//
// Its temporaries, the tensors that are made and freed within the window, lie in slots of the
// plan's own, so only the tensors that go in or stay are told to the workers, where they changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/graph_spans.h"
#include "wire/window.h"

namespace dtorch {

class Plan {
 public:
  using Moves = std::vector<std::pair<uint32_t, uint32_t>>;

  // own_slots: one for each temporary, in their order. for_graphs: workers run parts of it as graphs
  // of their devices.
  Plan(uint32_t number, Window window, std::vector<uint32_t> own_slots, bool for_graphs);
  static uint32_t num_temporaries(const Window& window);

  uint32_t number() const { return number_; }
  uint32_t num_records() const { return window_.num_records(); }
  size_t num_words() const { return window_.words().size(); }
  const std::vector<uint32_t>& own_slots() const { return own_slots_; }
  const std::vector<uint32_t>& words() const { return window_.words(); }
  const uint32_t* first_record() const { return window_.words().data(); }
  // The record that tells workers of this plan.
  std::vector<uint32_t> definition() const;
  // The record that puts others in the place of some. own_slots: for the tensors that only those
  // have; operators, regions: as Kind::kRewritePlan has them. Not while the program follows the plan.
  std::vector<uint32_t> rewrite(const std::vector<uint32_t>& own_slots,
                                const std::vector<uint32_t>& operators,
                                const std::vector<uint32_t>& regions);

  // ---- one run: begin, then match record by record, telling the workers now and then ------------
  void begin();
  // Whether the program's next record is the plan's too. It must live until it is told.
  bool match(const uint32_t* record);
  uint32_t num_matched() const { return static_cast<uint32_t>(records_.size()); }
  uint32_t num_told() const { return told_records_; }
  bool is_complete() const { return num_matched() == num_records(); }
  // How far workers may run: not into the midst of a region that has other records in its place, nor
  // of what may be a graph.
  uint32_t num_ready();
  // The record that has workers run the matched records up to this one, but for those told.
  std::vector<uint32_t> replay(uint32_t last);
  // The matched records, as the program wrote them.
  const std::vector<const uint32_t*>& matched() const { return records_; }
  // Ends a run that went another way: where workers hold temporaries that the program still has,
  // and where the program has them.
  Moves leave();
  // Begins in the middle: the program is where `other` is. False: that is not in this plan.
  // moves: how workers get there.
  bool take_over(const Plan& other, Moves* moves);
  // Ends a run of which workers know nothing.
  void abandon() { settle(); }

  uint64_t last_used = 0;
  std::vector<uint32_t> successors;  // plans that came next, the latest first

 private:
  bool match_word(uint32_t record, uint32_t word, uint32_t value);
  bool bind(uint32_t tensor, uint32_t slot, uint32_t record);
  void note_owners(uint32_t record, uint32_t word);
  // Where workers have a tensor.
  uint32_t place(uint32_t tensor) const {
    return own_slot_[tensor] != Window::kNone ? own_slot_[tensor] : slots_[tensor];
  }
  void settle();

  const uint32_t number_;
  Window window_;  // its words are those that workers have
  const bool for_graphs_;
  GraphSpans graph_spans_;
  std::vector<Span> regions_;
  std::vector<uint32_t> own_slots_;
  std::vector<uint32_t> own_slot_;  // by tensor; Window::kNone for what is no temporary
  std::vector<uint32_t> told_;      // by tensor: the slot that workers know
  // This run.
  std::vector<uint32_t> slots_;     // by tensor: the program's slot
  std::vector<uint32_t> changed_;   // tensors whose slots are to be told
  std::vector<const uint32_t*> records_;
  std::vector<bool> differs_;
  uint32_t told_records_ = 0;
  bool moved_ = false;              // some tensor lies in another slot than before
  std::unordered_map<uint32_t, uint32_t> owners_;  // once moved: slot -> the tensor in it
};

}  // namespace dtorch
