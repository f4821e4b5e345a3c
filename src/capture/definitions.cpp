#include "capture/definitions.h"

#include <cstring>

namespace dtorch {

Definitions& Definitions::get() {
  static auto* definitions = new Definitions;
  return *definitions;
}

void Definitions::begin_anew() {
  ++generation_;
  words_.clear();
  ends_.clear();
}

void Definitions::bring_rest(RecordQueue& queue) {
  while (queue.num_definitions < ends_.size()) {
    const size_t begin = queue.num_definitions == 0 ? 0 : ends_[queue.num_definitions - 1];
    const size_t length = ends_[queue.num_definitions] - begin;
    Writer writer = queue.reserve(length);
    std::memcpy(writer.position(), words_.data() + begin, length * 4);
    queue.commit(static_cast<uint32_t>(length));
    ++queue.num_definitions;
  }
}

}  // namespace dtorch
