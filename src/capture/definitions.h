// What numbers stand for: operators, call sites, meshes, shardings.
//
// A program defines each once; the workers of every graph are told all, in one order.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/record_queue.h"

namespace dtorch {

// Hold the stream lock.
class Definitions {
 public:
  static Definitions& get();

  // Of the set of workers that knows them.
  uint32_t generation() const { return generation_; }
  // Another set of workers, which knows none.
  void begin_anew();
  // Adds the record that `write` writes into at most so many words.
  template <class Write>
  void add(size_t words, Write&& write) {
    const size_t before = words_.size();
    words_.resize(before + words);
    Writer writer(words_.data() + before);
    write(writer);
    words_.resize(before + writer.end());
    ends_.push_back(words_.size());
  }
  // Has a graph's workers know all that there are.
  void bring(RecordQueue& queue) {
    if (C10_UNLIKELY(queue.num_definitions != ends_.size())) bring_rest(queue);
  }

 private:
  void bring_rest(RecordQueue& queue);

  uint32_t generation_ = 0;
  std::vector<uint32_t> words_;
  std::vector<size_t> ends_;
};

}  // namespace dtorch
