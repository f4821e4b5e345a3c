// Which records of a plan go to workers together, where these run parts of plans as graphs of their devices
// (worker/captured.h): a part runs as one only where all of its records have come.
//
// Rank 0 and the workers find the same spans, each from what it has seen of the plan: its window, the
// numbers in it that have changed, what passes have put in its place, and which records came in a message.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "wire/window.h"

namespace dtorch {

// Records from one to another.
struct Span {
  uint32_t first, last;
};

class GraphSpans {
 public:
  // A number of this record is another than it was.
  void note_change(uint32_t record);
  // A message has these records of the plan.
  void note_message(const Window& window, Span records);
  // Passes have put others in the place of these, all at once.
  void set_regions(std::vector<Span> regions);

  // In order. The same until one of these is noted that matters: then `version` is another.
  const std::vector<Span>& find(const Window& window);
  uint32_t version() const { return version_; }

 private:
  void divide(const Window& window);
  bool fits(const Window& window, Span records) const;
  void forget();

  std::vector<bool> has_changed_;  // by record
  std::vector<Span> regions_;
  // Where messages ended within a span, in the run at hand and the one before, and in how many runs up to that.
  std::map<uint32_t, uint32_t> ends_, earlier_ends_;
  std::set<uint32_t> cuts_;  // where the program waits for something, each time
  std::vector<Span> spans_;
  bool is_divided_ = false;
  uint32_t version_ = 0;
};

}  // namespace dtorch
