// How each collective becomes calls of MPI. All members must make the same calls, so what is
// decided here depends only on what all of them know.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/mpi/mpi_work.h"

namespace dtorch {
namespace {

// Tensors without elements have no address, and MPI refuses some null or equal addresses even
// with a count of 0.
char nothing_to_read[16];
char nothing_to_write[16];

const char* readable(const char* data) { return data != nullptr ? data : nothing_to_read; }
char* writable(char* data) { return data != nullptr ? data : nothing_to_write; }

int64_t total(const Block* blocks, size_t n) {
  int64_t count = 0;
  for (size_t i = 0; i < n; ++i) count += blocks[i].count;
  return count;
}

}  // namespace

MPI_Request* MPIWork::new_request() {
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

void MPIWork::issue() {
  // The communicator knows this work already: nobody may look at half of its requests.
  std::lock_guard<std::mutex> polling(polling_);
  const Request& request = request_;
  switch (request.kind) {
    case Kind::all_reduce:
      for (const Block& block : request.out) issue_all_reduce(block);
      break;
    case Kind::broadcast:
      broadcast_from(request.peer, request.out[0].data, request.bytes(request.out[0]));
      break;
    case Kind::reduce: issue_reduce(); break;
    case Kind::all_gather:
      for (size_t part = 0; part < request.in.size(); ++part) issue_all_gather(part);
      break;
    case Kind::gather: issue_gather(); break;
    case Kind::scatter: issue_scatter(); break;
    case Kind::reduce_scatter:
      for (size_t part = 0; part < request.out.size(); ++part) issue_reduce_scatter(part);
      break;
    case Kind::all_to_all: issue_all_to_all(); break;
    case Kind::barrier: check(MPI_Ibarrier(comm(), new_request()), "MPI_Ibarrier"); break;
    case Kind::send: issue_send(); break;
    case Kind::recv: issue_recv(); break;
  }
}

int64_t MPIWork::largest_count() const {
  return std::max<int64_t>(1, communicator_->largest() / request_.item_size);
}

char* MPIWork::buffer(int64_t bytes) {
  buffers_.push_back(std::make_unique_for_overwrite<char[]>(std::max<int64_t>(bytes, 16)));
  return buffers_.back().get();
}

char* MPIWork::together_to_read(const Block* blocks, size_t n) {
  bool is_together = true;
  for (size_t i = 1; i < n; ++i) {
    is_together &= blocks[i].data == blocks[i - 1].data + request_.bytes(blocks[i - 1]);
  }
  if (is_together) return const_cast<char*>(readable(blocks[0].data));
  char* whole = buffer(total(blocks, n) * request_.item_size);
  char* to = whole;
  for (size_t i = 0; i < n; ++i) {
    const int64_t bytes = request_.bytes(blocks[i]);
    if (bytes > 0) std::memcpy(to, blocks[i].data, bytes);
    to += bytes;
  }
  return whole;
}

char* MPIWork::together_to_write(const Block* blocks, size_t n) {
  bool is_together = true;
  for (size_t i = 1; i < n; ++i) {
    is_together &= blocks[i].data == blocks[i - 1].data + request_.bytes(blocks[i - 1]);
  }
  if (is_together) return writable(blocks[0].data);
  char* whole = buffer(total(blocks, n) * request_.item_size);
  const char* from = whole;
  for (size_t i = 0; i < n; ++i) {
    const int64_t bytes = request_.bytes(blocks[i]);
    if (bytes > 0) moves_.push_back({from, blocks[i].data, bytes});
    from += bytes;
  }
  return whole;
}

void MPIWork::issue_all_reduce(const Block& block) {
  const auto [type, op] = element_op(request_.caller, request_.reduce, request_.dtype);
  int64_t begin = 0;
  do {
    const int64_t n = std::min(largest_count(), block.count - begin);
    check(MPI_Iallreduce(MPI_IN_PLACE, writable(block.data) + begin * request_.item_size,
                         static_cast<int>(n), type, op, comm(), new_request()),
          "MPI_Iallreduce");
    begin += n;
  } while (begin < block.count);
}

void MPIWork::broadcast_from(int root, char* data, int64_t bytes) {
  types_.emplace_back(request_.caller, bytes, communicator_->largest());
  check(MPI_Ibcast(writable(data), types_.back().count(), types_.back().type(), root, comm(),
                   new_request()),
        "MPI_Ibcast");
}

void MPIWork::reduce_pieces(const char* from, char* to, int64_t count, int root) {
  const auto [type, op] = element_op(request_.caller, request_.reduce, request_.dtype);
  int64_t begin = 0;
  do {
    const int64_t n = std::min(largest_count(), count - begin);
    const int64_t offset = begin * request_.item_size;
    const bool in_place = rank() == root && from == to;
    check(MPI_Ireduce(in_place ? MPI_IN_PLACE : readable(from) + offset,
                      writable(rank() == root ? to : nullptr) + (rank() == root ? offset : 0),
                      static_cast<int>(n), type, op, root, comm(), new_request()),
          "MPI_Ireduce");
    begin += n;
  } while (begin < count);
}

void MPIWork::issue_reduce() {
  const Block& block = request_.out[0];
  reduce_pieces(block.data, block.data, block.count, request_.peer);
}

void MPIWork::issue_all_gather(size_t part) {
  const Block& in = request_.in[part];
  const Block* out = &request_.out[part * size()];
  const int64_t largest = communicator_->largest();
  if (request_.even) {
    types_.emplace_back(request_.caller, request_.bytes(in), largest);
    const ByteType& block = types_.back();
    check(MPI_Iallgather(readable(in.data), block.count(), block.type(),
                         together_to_write(out, size()), block.count(), block.type(), comm(),
                         new_request()),
          "MPI_Iallgather");
    return;
  }
  if (total(out, size()) * request_.item_size <= largest) {
    auto& counts = counts_.emplace_back();
    auto& places = counts_.emplace_back();
    int place = 0;
    for (int r = 0; r < size(); ++r) {
      counts.push_back(static_cast<int>(request_.bytes(out[r])));
      places.push_back(place);
      place += counts.back();
    }
    check(MPI_Iallgatherv(readable(in.data), counts[rank()], MPI_BYTE,
                          together_to_write(out, size()), counts.data(), places.data(), MPI_BYTE,
                          comm(), new_request()),
          "MPI_Iallgatherv");
    return;
  }
  const int64_t own_bytes = request_.bytes(in);
  if (own_bytes > 0) std::memcpy(out[rank()].data, in.data, own_bytes);
  for (int r = 0; r < size(); ++r) broadcast_from(r, out[r].data, request_.bytes(out[r]));
}

void MPIWork::issue_gather() {
  const Block& in = request_.in[0];
  const bool is_root = rank() == request_.peer;
  types_.emplace_back(request_.caller, request_.bytes(in), communicator_->largest());
  const ByteType& block = types_.back();
  char* to = is_root ? together_to_write(request_.out.data(), size()) : nullptr;
  check(MPI_Igather(readable(in.data), block.count(), block.type(), to, block.count(),
                    block.type(), request_.peer, comm(), new_request()),
        "MPI_Igather");
}

void MPIWork::issue_scatter() {
  const Block& out = request_.out[0];
  const bool is_root = rank() == request_.peer;
  types_.emplace_back(request_.caller, request_.bytes(out), communicator_->largest());
  const ByteType& block = types_.back();
  const char* from = is_root ? together_to_read(request_.in.data(), size()) : nullptr;
  check(MPI_Iscatter(from, block.count(), block.type(), writable(out.data), block.count(),
                     block.type(), request_.peer, comm(), new_request()),
        "MPI_Iscatter");
}

void MPIWork::issue_reduce_scatter(size_t part) {
  const Block* in = &request_.in[part * size()];
  const Block& out = request_.out[part];
  if (total(in, size()) > largest_count()) {
    for (int r = 0; r < size(); ++r) reduce_pieces(in[r].data, out.data, in[r].count, r);
    return;
  }
  const auto [type, op] = element_op(request_.caller, request_.reduce, request_.dtype);
  if (request_.even) {
    check(MPI_Ireduce_scatter_block(together_to_read(in, size()), writable(out.data),
                                    static_cast<int>(out.count), type, op, comm(),
                                    new_request()),
          "MPI_Ireduce_scatter_block");
    return;
  }
  auto& counts = counts_.emplace_back();
  for (int r = 0; r < size(); ++r) counts.push_back(static_cast<int>(in[r].count));
  check(MPI_Ireduce_scatter(together_to_read(in, size()), writable(out.data), counts.data(),
                            type, op, comm(), new_request()),
        "MPI_Ireduce_scatter");
}

void MPIWork::issue_all_to_all() {
  const int64_t largest = communicator_->largest();
  if (request_.even) {
    types_.emplace_back(request_.caller, request_.bytes(request_.in[0]), largest);
    const ByteType& block = types_.back();
    check(MPI_Ialltoall(together_to_read(request_.in.data(), size()), block.count(),
                        block.type(), together_to_write(request_.out.data(), size()),
                        block.count(), block.type(), comm(), new_request()),
          "MPI_Ialltoall");
    return;
  }
  // A member knows only its own sizes, so it can't tell whether int displacements would do for
  // all: absolute addresses always do.
  std::vector<MPI_Datatype> types[2];
  auto& in_counts = counts_.emplace_back();
  for (const Block& block : request_.in) {
    types_.emplace_back(request_.caller, block.data, request_.bytes(block), largest);
    in_counts.push_back(types_.back().count());
    types[0].push_back(types_.back().type());
  }
  auto& out_counts = counts_.emplace_back();
  for (const Block& block : request_.out) {
    types_.emplace_back(request_.caller, block.data, request_.bytes(block), largest);
    out_counts.push_back(types_.back().count());
    types[1].push_back(types_.back().type());
  }
  const std::vector<int>& places = counts_.emplace_back(size(), 0);
  const auto& in_types = type_lists_.emplace_back(std::move(types[0]));
  const auto& out_types = type_lists_.emplace_back(std::move(types[1]));
  check(MPI_Ialltoallw(MPI_BOTTOM, in_counts.data(), places.data(), in_types.data(), MPI_BOTTOM,
                       out_counts.data(), places.data(), out_types.data(), comm(),
                       new_request()),
        "MPI_Ialltoallw");
}

void MPIWork::issue_send() {
  const Block& block = request_.in[0];
  const ByteType type(request_.caller, request_.bytes(block), communicator_->largest());
  check(MPI_Isend(readable(block.data), type.count(), type.type(), request_.peer, request_.tag,
                  comm(), new_request()),
        "MPI_Isend");
}

void MPIWork::issue_recv() {
  const Block& block = request_.out[0];
  const ByteType type(request_.caller, request_.bytes(block), communicator_->largest());
  const int source = request_.peer == kAnySource ? MPI_ANY_SOURCE : request_.peer;
  check(MPI_Irecv(writable(block.data), type.count(), type.type(), source, request_.tag, comm(),
                  new_request()),
        "MPI_Irecv");
}

}  // namespace dtorch
