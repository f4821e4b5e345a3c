#pragma once

#include <mpi.h>

#include <cstdint>

#include <ATen/ATen.h>

#include "collectives/request.h"

namespace dtorch {

// `bytes` bytes as (count, type) for calls whose counts are ints: plain MPI_BYTE up to
// `largest`, beyond it one element of a derived type with the same signature.
class ByteType {
 public:
  ByteType(const Caller& caller, int64_t bytes, int64_t largest);
  // At an absolute address, for use with MPI_BOTTOM.
  ByteType(const Caller& caller, const void* address, int64_t bytes, int64_t largest);
  ~ByteType();
  ByteType(ByteType&& other) noexcept;
  ByteType(const ByteType&) = delete;
  ByteType& operator=(const ByteType&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

struct ElementOp {
  MPI_Datatype type;
  MPI_Op op;
};

// What to reduce elements of this dtype with; AVG sums. MPI's own operators where they do what
// PyTorch does. float16 and bfloat16, which MPI lacks, and MIN and MAX of floating numbers,
// where MPI loses NaN, have operators of ours: the 16-bit types are combined in float32 and
// rounded at each step.
ElementOp element_op(const Caller& caller, Reduce op, at::ScalarType dtype);

}  // namespace dtorch
