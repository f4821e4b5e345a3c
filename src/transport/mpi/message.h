// The fixed parts of the messages beside the batches, and the pieces of sending that Cython
// can't say.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "sharding/parts.h"
#include "transport/backoff.h"
#include "transport/link.h"

namespace dtorch {

// The tags of one graph's messages.
struct Tags {
  explicit Tags(uint32_t graph = 0)
      : batch(8 * static_cast<int>(graph) + 1), progress(batch + 1), transfer(batch + 2), ask(batch + 3),
        sent(batch + 4) {}

  int batch;
  int progress;
  int transfer;  // in the order of their numbers
  int ask;       // a worker asks whether a transfer is on its way
  int sent;      // the answer
};
constexpr int kTagReply = 8 * kMaxGraphs;  // + promise % kTagRange; MPI allows 32767 at least
constexpr int kTagRange = 32000;
constexpr size_t kPiece = size_t{1} << 30;  // one message; MPI counts are ints
constexpr size_t kInline = 64 * 1024;       // a reply's data up to here is in its first message
constexpr size_t kTextBytes = 4096;

// Opens a transfer or a reply.
struct TensorHeader {
  enum Status : uint32_t { kNothing = 0, kValue = 1, kFailure = 2 };
  uint32_t status = kNothing;
  int32_t dtype = 0;
  int32_t dim = 0;
  uint32_t site = 0;      // of a failure
  int32_t worker = 0;
  uint32_t text_bytes = 0, host_bytes = 0;
  uint32_t padding = 0;
  uint64_t record = 0;    // of a failure; of a transfer, its number
  uint64_t nbytes = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
};

// Rank 0's answer to a worker that asks.
struct Sent {
  uint64_t number = 0;  // that was asked about
  uint64_t end = 0;     // the lowest number that has not been sent
};

// The first message of a reply whose value has `nbytes`: header and data, or header and texts.
inline size_t first_message_bytes(size_t nbytes) {
  return sizeof(TensorHeader) + std::max(kTextBytes, std::min(nbytes, kInline));
}

// No value can travel any more: ends the job. The launcher and the watchers tell the rest.
[[noreturn]] inline void transport_failed(const char* what, const char* text) {
  std::fprintf(stderr, "dtorch_mpi: the transport over MPI failed in %s: %s\n", what, text);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 70);
  std::abort();
}

inline void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  transport_failed(what, text);
}

// Sends under way, with what keeps their memory.
class Outbox {
 public:
  void post(const void* data, size_t bytes, int rank, int tag, MPI_Comm comm) {
    Pending& pending = pending_.back();
    const char* at = static_cast<const char*>(data);
    do {
      const size_t piece = std::min(bytes, kPiece);
      pending.requests.emplace_back();
      check_mpi(MPI_Isend(at, static_cast<int>(piece), MPI_BYTE, rank, tag, comm,
                          &pending.requests.back()), "MPI_Isend");
      at += piece;
      bytes -= piece;
    } while (bytes > 0);
  }
  void keep_batch(const Batch& batch) { pending_.emplace_back().batch = batch; }
  char* keep_bytes(size_t size) {
    pending_.emplace_back().bytes.resize(size);
    return pending_.back().bytes.data();
  }
  void keep_tensor(const at::Tensor& tensor) { pending_.emplace_back().tensor = tensor; }

  // Completes what has been sent; returns what is left.
  size_t poll() {
    while (!pending_.empty()) {
      auto& requests = pending_.front().requests;
      int done = 1;
      if (!requests.empty()) {
        check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                              MPI_STATUSES_IGNORE), "MPI_Testall");
      }
      if (!done) break;
      pending_.pop_front();
    }
    return pending_.size();
  }
 private:
  struct Pending {
    std::vector<MPI_Request> requests;
    Batch batch;
    std::vector<char> bytes;
    at::Tensor tensor;
  };
  std::deque<Pending> pending_;
};

// Header and data of a dense tensor (undefined: this rank has no part) as messages.
inline void post_transfer(Outbox& outbox, uint64_t number, const at::Tensor& tensor, int rank,
                          int tag, MPI_Comm comm) {
  TensorHeader header{};
  header.record = number;
  header.status = tensor.defined() ? TensorHeader::kValue : TensorHeader::kNothing;
  if (tensor.defined()) {
    TORCH_INTERNAL_ASSERT(tensor.dim() <= kMaxDims);
    header.dtype = static_cast<int32_t>(tensor.scalar_type());
    header.dim = static_cast<int32_t>(tensor.dim());
    header.nbytes = tensor.nbytes();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), header.sizes);
    std::copy(tensor.strides().begin(), tensor.strides().end(), header.strides);
  }
  char* bytes = outbox.keep_bytes(sizeof header);
  std::memcpy(bytes, &header, sizeof header);
  outbox.post(bytes, sizeof header, rank, tag, comm);
  if (header.nbytes == 0) return;
  outbox.keep_tensor(tensor);
  outbox.post(tensor.const_data_ptr(), header.nbytes, rank, tag, comm);
}

inline void receive_bytes(void* data, size_t bytes, int rank, int tag, MPI_Comm comm, Outbox& outbox,
                          int spins) {
  char* at = static_cast<char*>(data);
  do {
    const size_t piece = std::min(bytes, kPiece);
    MPI_Request request;
    check_mpi(MPI_Irecv(at, static_cast<int>(piece), MPI_BYTE, rank, tag, comm, &request), "MPI_Irecv");
    Backoff backoff(spins);
    int done = 0;
    while (true) {
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done) break;
      outbox.poll();  // others may wait for what this rank forwards
      backoff.pause();
    }
    at += piece;
    bytes -= piece;
  } while (bytes > 0);
}

// A worker's side of the data beside the batches. It comes straight from rank 0, in the order of
// its numbers, and may be later than the batch that names it.
class TransferInbox {
 public:
  TransferInbox(MPI_Comm comm, const Tags& tags, int spins) : comm_(comm), tags_(tags), spins_(spins) {}

  // Waits for the data of this number. False: it was taken before, or rank 0 never sent it.
  bool take(uint64_t number, Outbox& outbox, at::Tensor* part) try {
    while (number >= next_) {
      MPI_Message message;
      if (!wait(number, outbox, &message)) return false;
      TensorHeader header;
      check_mpi(MPI_Mrecv(&header, sizeof header, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
      waiting_[header.record] = receive_data(header, outbox);
      next_ = header.record + 1;
    }
    auto found = waiting_.find(number);
    if (found == waiting_.end()) return false;
    *part = std::move(found->second);
    waiting_.erase(found);
    return true;
  } catch (const std::exception& error) {
    transport_failed("receiving data", error.what());  // no memory for it
  }

 private:
  static constexpr auto kPatience = std::chrono::milliseconds(500);

  // The next transfer's header. Where none comes, asks rank 0, which sent all that a batch names
  // before that batch; false: it sent nothing of this number.
  bool wait(uint64_t number, Outbox& outbox, MPI_Message* message) {
    const auto ask_at = std::chrono::steady_clock::now() + kPatience;
    Backoff backoff(spins_);
    bool asked = false;
    while (!probe(tags_.transfer, message)) {
      if (!asked && std::chrono::steady_clock::now() >= ask_at) {
        char* bytes = outbox.keep_bytes(sizeof number);
        std::memcpy(bytes, &number, sizeof number);
        outbox.post(bytes, sizeof number, 0, tags_.ask, comm_);
        asked = true;
      }
      MPI_Message answer;
      if (asked && probe(tags_.sent, &answer)) {
        Sent sent;
        check_mpi(MPI_Mrecv(&sent, sizeof sent, MPI_BYTE, &answer, MPI_STATUS_IGNORE), "MPI_Mrecv");
        // An answer may have been overtaken by the data that it was about.
        if (sent.number == number && sent.end <= number) return false;
      }
      outbox.poll();  // others may wait for what this rank forwards
      backoff.pause();
    }
    return true;
  }

  bool probe(int tag, MPI_Message* message) {
    int found = 0;
    check_mpi(MPI_Improbe(0, tag, comm_, &found, message, MPI_STATUS_IGNORE), "MPI_Improbe");
    return found != 0;
  }

  at::Tensor receive_data(const TensorHeader& header, Outbox& outbox) {
    if (header.status != TensorHeader::kValue) return {};
    const size_t dim = static_cast<size_t>(header.dim);
    auto tensor = at::empty_strided({header.sizes, dim}, {header.strides, dim},
                                    at::TensorOptions().dtype(static_cast<c10::ScalarType>(header.dtype)));
    if (header.nbytes > 0) {
      receive_bytes(tensor.mutable_data_ptr(), header.nbytes, 0, tags_.transfer, comm_, outbox, spins_);
    }
    return tensor;
  }

  MPI_Comm comm_;
  const Tags tags_;
  int spins_;
  uint64_t next_ = 0;  // what comes next is of this number or, in a later job, beyond
  std::map<uint64_t, at::Tensor> waiting_;
};

// Rank 0 tells workers that asked which numbers it has sent.
inline void answer_asks(uint64_t end, Outbox& outbox, const Tags& tags, MPI_Comm comm) {
  while (true) {
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, tags.ask, comm, &found, &message, &status), "MPI_Improbe");
    if (!found) return;
    Sent sent;
    sent.end = end;
    check_mpi(MPI_Mrecv(&sent.number, sizeof sent.number, MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "MPI_Mrecv");
    char* bytes = outbox.keep_bytes(sizeof sent);
    std::memcpy(bytes, &sent, sizeof sent);
    outbox.post(bytes, sizeof sent, status.MPI_SOURCE, tags.sent, comm);
  }
}

inline void send_part(Outbox& outbox, const Transfer& transfer, int worker, int rank, int tag,
                      MPI_Comm comm) try {
  // The transfer's tensor is never written to, so a replicated one needs no copy.
  post_transfer(outbox, transfer.number,
                transfer.sharding == 0 ? transfer.tensor : own_part(transfer, worker), rank, tag, comm);
} catch (const std::exception& error) {
  transport_failed("sending data", error.what());
}

// A reply as one block: header, texts, data as far as `room` allows. Returns bytes written.
inline size_t write_reply(const Reply& reply, int worker, char* block, size_t room) {
  TensorHeader header{};
  header.worker = worker;
  size_t used = sizeof header;
  if (reply.failure) {
    header.status = TensorHeader::kFailure;
    header.site = reply.failure->site;
    header.record = reply.failure->record;
    header.worker = reply.failure->worker;
    header.host_bytes = static_cast<uint32_t>(std::min<size_t>(reply.failure->host.size(), 256));
    header.text_bytes = static_cast<uint32_t>(
        std::min(reply.failure->text.size(), kTextBytes - header.host_bytes));
    std::memcpy(block + used, reply.failure->text.data(), header.text_bytes);
    used += header.text_bytes;
    std::memcpy(block + used, reply.failure->host.data(), header.host_bytes);
    used += header.host_bytes;
  } else if (reply.value.defined()) {
    header.status = TensorHeader::kValue;
    header.dtype = static_cast<int32_t>(reply.value.scalar_type());
    header.dim = static_cast<int32_t>(reply.value.dim());
    header.nbytes = reply.value.nbytes();
    std::copy(reply.value.sizes().begin(), reply.value.sizes().end(), header.sizes);
    if (used + header.nbytes <= room) {
      if (header.nbytes) std::memcpy(block + used, reply.value.const_data_ptr(), header.nbytes);
      used += header.nbytes;
    }
  }
  std::memcpy(block, &header, sizeof header);
  return used;
}

// The reply in a block. Where the data did not fit, `*rest` are the bytes still to come into
// the value's memory.
inline Reply read_reply(const char* block, size_t room, size_t* rest) {
  TensorHeader header;
  std::memcpy(&header, block, sizeof header);
  *rest = 0;
  Reply reply;
  if (header.status == TensorHeader::kFailure) {
    auto failure = std::make_shared<Failure>();
    failure->text.assign(block + sizeof header, header.text_bytes);
    failure->host.assign(block + sizeof header + header.text_bytes, header.host_bytes);
    failure->site = header.site;
    failure->record = header.record;
    failure->worker = header.worker;
    reply.failure = failure;
  } else if (header.status == TensorHeader::kValue) {
    reply.value = at::empty({header.sizes, static_cast<size_t>(header.dim)},
                            at::TensorOptions().dtype(static_cast<c10::ScalarType>(header.dtype)));
    if (sizeof header + header.nbytes <= room) {
      if (header.nbytes) std::memcpy(reply.value.mutable_data_ptr(), block + sizeof header, header.nbytes);
    } else {
      *rest = header.nbytes;
    }
  }
  return reply;
}

}  // namespace dtorch
