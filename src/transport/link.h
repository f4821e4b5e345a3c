// The seam between the stages and whatever carries batches and values.
//
// Two tables of functions, one for each end; the implementations are Cython (memory.pyx for
// workers in this process, mpi/mpi_link.pyx for MPI ranks). None of them needs the GIL, and
// none of them waits for the other end, except receive and fetch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "capture/record_queue.h"
#include "capture/transfers.h"
#include "wire/record.h"

namespace dtorch {

// Why an operator could not run, as it travels back to rank 0.
struct Failure {
  std::string text;      // operator, shapes, what LibTorch said
  uint32_t site = 0;     // the user's line, by number
  uint64_t record = 0;   // which record of the program: record_of_graph()
  int32_t worker = 0;
  std::string host;
};
using FailurePtr = std::shared_ptr<const Failure>;

// A record's number among those of all graphs.
inline uint64_t record_of_graph(uint32_t graph, uint64_t record) { return uint64_t{graph} << 48 | record; }

// The answer to a request: a value, a description, nothing (sync), or a failure.
struct Reply {
  at::Tensor value;        // on the CPU, contiguous
  FailurePtr failure;
};

// A worker's end.
struct WorkerLink {
  void* self = nullptr;
  // The next batch; false when none came within `microseconds`.
  bool (*receive)(void* self, Batch* batch, int64_t microseconds) = nullptr;
  // This worker's part of a transfer; waits for it. False where none of this number will come.
  bool (*fetch)(void* self, uint64_t number, at::Tensor* part) = nullptr;
  // From any thread. False where the promise names a place outside of rank 0's memory for replies, or one too small
  // for the value; a failure fits in any.
  bool (*reply)(void* self, const PromiseName* promise, const Reply* reply) = nullptr;
  // How far this worker has come: all records before `records` are executed.
  void (*progress)(void* self, uint64_t records) = nullptr;
};

// Rank 0's end, to one or more workers.
struct ControllerLink {
  void* self = nullptr;
  void (*send)(void* self, const Batch* batch) = nullptr;
  void (*send_transfer)(void* self, const Transfer* transfer) = nullptr;
  // The least progress among the workers of this link.
  uint64_t (*executed)(void* self) = nullptr;
  // Completes what was begun; called often.
  void (*poll)(void* self) = nullptr;
};

}  // namespace dtorch
