// Moving a tensor from one mesh to another: who sends which part to whom.
#pragma once

#include "sharding/table.h"

namespace dtorch {

// A part of a global tensor, one number a dim.
struct Box {
  std::vector<int64_t> offsets, sizes;

  bool empty() const;
};

Box intersection(const Box& a, const Box& b);

// The part that the worker at a coordinate holds.
Box box_of(std::span<const int64_t> global_sizes, const Sharding& sharding,
           std::span<const int64_t> coordinate);

struct Message {
  int32_t from, to;  // workers
  Box box;
};

// The messages of a transfer, the same on every worker; at most one between any two. Copies that
// several workers hold are sent by all of them in turn, and taken from oneself where possible.
// Raises ValueError for partial sums: they are on no worker.
std::vector<Message> plan_transfer(std::span<const int64_t> global_sizes, const Sharding& from,
                                   const Sharding& to);

}  // namespace dtorch
