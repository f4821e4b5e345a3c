#include "collectives/mpi/datatypes.h"

#include <map>
#include <mutex>
#include <utility>

#include "collectives/mpi/communicator.h"
#include "collectives/reduction.h"

namespace dtorch {
namespace {

MPI_Datatype large_type(const Caller& caller, int64_t bytes, int64_t chunk_bytes) {
  const int64_t num_chunks = bytes / chunk_bytes;
  const int rest = static_cast<int>(bytes % chunk_bytes);
  MPI_Datatype chunk;
  MPI_Datatype whole;
  check_mpi(MPI_Type_contiguous(static_cast<int>(chunk_bytes), MPI_BYTE, &chunk), caller,
            "MPI_Type_contiguous");
  const int counts[2] = {static_cast<int>(num_chunks), rest};
  const MPI_Aint places[2] = {0, static_cast<MPI_Aint>(num_chunks * chunk_bytes)};
  const MPI_Datatype types[2] = {chunk, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, counts, places, types, &whole), caller,
            "MPI_Type_create_struct");
  MPI_Type_free(&chunk);
  return whole;
}

template <Reduce op, at::ScalarType dtype>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce_in_order(op, dtype, {static_cast<const char*>(in), static_cast<const char*>(inout)},
                  {static_cast<char*>(inout)}, *count);
}

template <at::ScalarType dtype>
MPI_User_function* combine_of(Reduce op) {
  switch (op) {
    case Reduce::PRODUCT: return combine<Reduce::PRODUCT, dtype>;
    case Reduce::MIN: return combine<Reduce::MIN, dtype>;
    case Reduce::MAX: return combine<Reduce::MAX, dtype>;
    default: return combine<Reduce::SUM, dtype>;
  }
}

MPI_User_function* own_operator(Reduce op, at::ScalarType dtype) {
  const bool is_order = op == Reduce::MIN || op == Reduce::MAX;
  switch (dtype) {
    case at::kHalf: return combine_of<at::kHalf>(op);
    case at::kBFloat16: return combine_of<at::kBFloat16>(op);
    case at::kFloat: return is_order ? combine_of<at::kFloat>(op) : nullptr;
    case at::kDouble: return is_order ? combine_of<at::kDouble>(op) : nullptr;
    default: return nullptr;
  }
}

MPI_Datatype element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: return MPI_C_BOOL;
    case at::kByte: return MPI_UINT8_T;
    case at::kChar: return MPI_INT8_T;
    case at::kShort: return MPI_INT16_T;
    case at::kInt: return MPI_INT32_T;
    case at::kLong: return MPI_INT64_T;
    case at::kHalf:
    case at::kBFloat16:
    case at::kUInt16: return MPI_UINT16_T;
    case at::kUInt32: return MPI_UINT32_T;
    case at::kUInt64: return MPI_UINT64_T;
    case at::kFloat: return MPI_FLOAT;
    case at::kDouble: return MPI_DOUBLE;
    case at::kComplexFloat: return MPI_C_FLOAT_COMPLEX;
    case at::kComplexDouble: return MPI_C_DOUBLE_COMPLEX;
    default: return MPI_DATATYPE_NULL;
  }
}

MPI_Op mpi_operator(Reduce op, bool is_bool) {
  switch (op) {
    case Reduce::PRODUCT: return is_bool ? MPI_LAND : MPI_PROD;
    case Reduce::MIN: return is_bool ? MPI_LAND : MPI_MIN;
    case Reduce::MAX: return is_bool ? MPI_LOR : MPI_MAX;
    case Reduce::BAND: return is_bool ? MPI_LAND : MPI_BAND;
    case Reduce::BOR: return is_bool ? MPI_LOR : MPI_BOR;
    case Reduce::BXOR: return is_bool ? MPI_LXOR : MPI_BXOR;
    default: return is_bool ? MPI_LOR : MPI_SUM;
  }
}

}  // namespace

ByteType::ByteType(const Caller& caller, int64_t bytes, int64_t largest) {
  if (bytes <= largest) {
    count_ = static_cast<int>(bytes);
    return;
  }
  count_ = 1;
  type_ = large_type(caller, bytes, largest);
  check_mpi(MPI_Type_commit(&type_), caller, "MPI_Type_commit");
}

ByteType::ByteType(const Caller& caller, const void* address, int64_t bytes, int64_t largest) {
  if (bytes == 0) return;
  count_ = 1;
  MPI_Aint place = 0;
  check_mpi(MPI_Get_address(address, &place), caller, "MPI_Get_address");
  const ByteType block(caller, bytes, largest);
  check_mpi(MPI_Type_create_hindexed(1, &block.count_, &place, block.type_, &type_), caller,
            "MPI_Type_create_hindexed");
  check_mpi(MPI_Type_commit(&type_), caller, "MPI_Type_commit");
}

ByteType::ByteType(ByteType&& other) noexcept
    : count_(other.count_), type_(std::exchange(other.type_, MPI_BYTE)) {}

ByteType::~ByteType() {
  if (type_ != MPI_BYTE && mpi_is_running()) MPI_Type_free(&type_);
}

ElementOp element_op(const Caller& caller, Reduce op, at::ScalarType dtype) {
  if (op == Reduce::AVG) op = Reduce::SUM;
  MPI_User_function* own = own_operator(op, dtype);
  if (own == nullptr) return {element_type(dtype), mpi_operator(op, dtype == at::kBool)};

  static std::mutex mutex;
  static std::map<MPI_User_function*, MPI_Op> made;
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = made.find(own);
  if (found != made.end()) return {element_type(dtype), found->second};
  MPI_Op made_op = MPI_OP_NULL;
  check_mpi(MPI_Op_create(own, /*commute=*/1, &made_op), caller, "MPI_Op_create");
  made.emplace(own, made_op);
  return {element_type(dtype), made_op};
}

}  // namespace dtorch
