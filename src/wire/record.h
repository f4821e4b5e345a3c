// The record format: what rank 0 writes and every worker reads.
//
// A batch is a run of records. A record is a run of 32-bit words in host byte order:
//
//   word 0   length of the record in words, this one included
//   word 1   kind (low 16 bits) | count (high 16 bits; its meaning depends on the kind)
//   word 2   operator number, or another number of the kind
//   word 3   call-site number: where in the user's program it was issued
//   word 4   of an operator: number of the call, which stands for all that shapes its outputs
//            (capture/call_entry.h); 0 where that is not known
//   then     values, each opened by a word: tag (high 8 bits) | payload (low 24 bits)
//
// Nothing in a record is a pointer, and nothing is ever unpickled.
#pragma once

#include <cstdint>

namespace dtorch {

constexpr uint32_t kHeaderWords = 4;
constexpr uint32_t kMaxSlots = 1u << 24;  // a slot number fits a tag's payload
constexpr uint32_t kNoSlot = kMaxSlots - 1;
// Set in an operator's count: each output slot is followed by its sharding's number.
constexpr uint32_t kShardedOperator = 1u << 15;

enum class Kind : uint16_t {
  kOperator = 1,      // count: arguments; then the outputs
  kFree = 2,          // word 2: slot
  kDefineOperator = 3,  // word 2: number; values: name, overload
  kDefineSite = 4,    // word 2: number; values: text
  kDefineMesh = 5,    // word 2: number; values: shape, workers
  kDefineSharding = 6,  // word 2: number; values: mesh number, placements as int list
  kUpload = 7,        // word 2: slot; values: dtype, sizes, sharding, bytes | transfer number
  kGet = 8,           // word 2: slot; values: promise, sharding
  kSync = 9,          // values: promise
  kRedistribute = 10,  // word 2: input slot; values: output slot, dtype, sizes, strides, from, to
  kDescribe = 11,     // word 2: slot; values: promise. Replies with the tensor's metadata
  kPythonKernel = 12,  // values: name, packed arguments, sharding, then dtype, sizes an output
  kShutdown = 13,
  kMark = 14,         // the end of a step of the user's program; nothing to do
  // Of the controller (controller/tracer.h), between the program's records and not counted
  // among them, but for kReplay, which stands for as many as it runs:
  kDefinePlan = 15,   // word 2: number; slots for its temporaries, then the records of a window
  kReplay = 16,       // word 2: plan; first and last record; slots and values that changed
  kMoveSlots = 17,    // pairs: a slot, and an empty one that takes what it holds
  kForgetPlan = 18,   // word 2: number
  kRewritePlan = 19,  // word 2: number; slots for new tensors, operators, then regions: the
                      // records of the plan from one to another, and what takes their place
  kTurn = 20,         // word 2: the place of this batch's collectives among those of all graphs
  // Of the program, between graphs (capture/between_graphs.h); never part of a window:
  kWait = 21,         // count: graph; word 2: which of that number, counted from 1; values: how many
                      // of its records must have run
  kExport = 22,       // word 2: slot; values: ticket under which another graph takes the tensor
  kImport = 23,       // word 2: slot; count: graph that exports it; values: ticket, how many of
                      // that graph's records must have run
};

constexpr uint32_t kMaxGraphs = 64;  // at once; the first is the main one

inline bool is_between_graphs(Kind kind) {
  return kind == Kind::kWait || kind == Kind::kExport || kind == Kind::kImport;
}

enum class Tag : uint8_t {
  kNone = 0,
  kSlot = 1,          // payload: slot
  kSmallInt = 2,      // payload: a signed 24-bit integer
  kInt = 3,           // two words
  kDouble = 4,        // two words
  kBool = 5,          // payload
  kComplex = 6,       // four words
  kIntList = 7,       // payload: count; two words an element
  kDoubleList = 8,    // payload: count; two words an element
  kBoolList = 9,      // payload: count; a word an element
  kSlotList = 10,     // payload: count; a slot word an element
  kOptionalSlotList = 11,  // the same, kNoSlot for None
  kScalarList = 12,   // payload: count; a tagged value an element
  kString = 13,       // payload: bytes; padded to words
  kDevice = 14,       // the worker's own device
  kHostDevice = 15,   // the CPU
  kScalarTensor = 16,  // payload: dtype | wrapped << 8; then a tagged value
  kGenerator = 17,    // four words: seed, offset
  kShardedGenerator = 23,  // payload: count; a sharding word; global sizes; seed, offset
  kLocalSizes = 18,   // payload: count; a sharding word; two words an element: a global size
  kLocalStrides = 22,  // payload: count; a sharding word; global sizes, then global strides
  kOutput = 19,       // payload: slot that takes a returned tensor
  kOutputList = 20,   // payload: count; a slot word an element
  kOutputIgnored = 21,  // a return that needs no slot
};

// How a value comes back (the home of its promise).
enum class Home : uint8_t { kMemory = 0, kShared = 1, kNetwork = 2 };

// A promise as it travels: a kind and a name; the worker rebuilds the object from it.
struct PromiseName {
  Home home = Home::kMemory;
  uint32_t id = 0;        // unique among the outstanding ones
  uint64_t place = 0;     // kShared: byte offset of this reply's block in rank 0's window
};

}  // namespace dtorch
