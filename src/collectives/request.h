#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace dtorch {

using Reduce = c10d::ReduceOp::RedOpType;

// Who calls what. Every error text of the collectives starts with it.
struct Caller {
  const char* backend;
  const char* collective;
  int rank;
  int size;
  // Where the caller's tensors must be.
  c10::Device device = c10::Device(c10::kCPU);

  std::string text() const;
};

enum class Kind : uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  send,
  recv,
};

// `count` elements of the request's dtype in one piece of memory.
struct Block {
  char* data;
  int64_t count;
};

// Block source for recv: any member.
constexpr int kAnySource = -1;

// A tensor that blocks point into, and the caller's tensor for which it stands.
struct StandIn {
  at::Tensor dense;
  at::Tensor callers;
};

// One member's side of one collective: checked, on the CPU, contiguous. With `size` members
// and n coalesced tensors, the blocks are
//
//     kind                            in           out
//     all_reduce, broadcast, reduce   n            the same n
//     all_gather                      n            n * size
//     reduce_scatter                  n * size     n
//     gather                          1            size at the root, else 0
//     scatter                         size at the root, else 0     1
//     all_to_all                      size         size
//     send / recv                     1 / 0        0 / 1
//
// The request keeps the memory of its blocks alive until finish(). Of tensors on an accelerator
// the blocks are in pinned memory, to which copies are under way on the current stream.
class Request {
 public:
  Request(Caller caller, Kind kind, c10d::OpType op_type, std::chrono::milliseconds timeout);

  Caller caller;
  Kind kind;
  c10d::OpType op_type;
  std::chrono::milliseconds timeout;
  at::ScalarType dtype = at::kByte;
  int64_t item_size = 1;
  Reduce reduce = Reduce::SUM;
  // The root of a rooted collective, the other side of a send or recv.
  int peer = 0;
  int tag = 0;
  // Every member's blocks are known to have one size (the members agree on this flag).
  bool even = false;
  std::vector<Block> in;
  std::vector<Block> out;
  // The caller's own output tensors.
  std::vector<at::Tensor> results;

  // Add a tensor that the collective reads, as `pieces` blocks of equal size.
  void reads(const at::Tensor& tensor, int64_t pieces = 1);
  // Add a tensor that it writes.
  void writes(const at::Tensor& tensor, int64_t pieces = 1);
  // Add a tensor that it reads and then writes.
  void updates(const at::Tensor& tensor);
  // As reads() and writes(), in blocks of the given counts.
  void reads_split(const at::Tensor& tensor, const std::vector<int64_t>& counts);
  void writes_split(const at::Tensor& tensor, const std::vector<int64_t>& counts);

  // Give inputs that share memory with an output memory of their own. Called once all
  // tensors are added.
  void separate();
  // Leave it to the caller to bring staged results to its tensors; finish() then does not.
  std::vector<StandIn> take_staged() { return std::exchange(staged_, {}); }
  // Bring staged results to the caller's tensors and let go of the memory.
  void finish();

  int64_t bytes(const Block& block) const { return block.count * item_size; }

 private:
  struct Added {
    at::Tensor dense;
    size_t first_block;
    size_t num_blocks;
  };

  at::Tensor dense_copy(const at::Tensor& tensor) const;
  void add(std::vector<Added>& list, std::vector<Block>& blocks, const at::Tensor& dense,
           const std::vector<int64_t>& counts);

  std::vector<Added> inputs_;
  std::vector<Added> outputs_;
  std::vector<StandIn> staged_;
};

}  // namespace dtorch
