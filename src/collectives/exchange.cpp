#include "collectives/exchange.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "collectives/reduction.h"

namespace dtorch {
namespace {

// Large enough that taking a piece costs nothing beside running it, small enough that the
// sources of a reduction stay in the cache and that a gradient makes work for every member.
constexpr int64_t kPieceBytes = 256 * 1024;

const char* name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "allreduce";
    case Kind::broadcast: return "broadcast";
    case Kind::reduce: return "reduce";
    case Kind::all_gather: return "allgather";
    case Kind::gather: return "gather";
    case Kind::scatter: return "scatter";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_to_all: return "alltoall";
    case Kind::barrier: return "barrier";
    case Kind::send: return "send";
    case Kind::recv: return "recv";
  }
  return "?";
}

bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter;
}

// What every member of a collective must agree on.
std::string common_part(const Request& request) {
  std::ostringstream text;
  text << name(request.kind);
  if (request.kind == Kind::barrier) return text.str();
  text << " of " << request.dtype;
  if (is_reduction(request.kind)) text << " with " << reduce_name(request.reduce);
  if (has_root(request.kind)) text << " with root " << request.peer;
  return text.str();
}

}  // namespace

Exchange::Exchange(int num_members) : works_(num_members), num_members_(num_members) {}

const Request& Exchange::request(int place) const { return works_[place]->request_; }

bool Exchange::join(int place, const c10::intrusive_ptr<ThreadWork>& work) {
  TORCH_INTERNAL_ASSERT(!works_[place]);
  works_[place] = work;
  ++num_joined_;
  return is_full();
}

std::vector<c10::intrusive_ptr<ThreadWork>> Exchange::give_up() {
  std::vector<c10::intrusive_ptr<ThreadWork>> waiting;
  for (auto& work : works_) {
    if (work) waiting.push_back(std::move(work));
  }
  works_.clear();
  return waiting;
}

std::string Exchange::mismatch() const {
  const Request& first = request(0);
  const int n = static_cast<int>(works_.size());
  const auto differs = [](const Request& a, const Request& b, const std::string& of_a,
                          const std::string& of_b) {
    std::ostringstream text;
    text << "the members' calls do not match: rank " << a.caller.rank << " has " << of_a
         << ", rank " << b.caller.rank << " has " << of_b
         << ". All members must issue the same collectives in the same order";
    return text.str();
  };
  const auto elements = [](int64_t count) { return std::to_string(count) + " elements"; };
  // What rank `a` gives to rank `b` (block `i` of `give`) against what `b` takes from it.
  const auto uneven = [&](int a, const Block& give, int b, const Block& take) {
    return give.count == take.count
               ? std::string()
               : differs(request(a), request(b), elements(give.count) + " to give",
                         elements(take.count) + " to take");
  };

  if (first.kind == Kind::send) {
    const Request& recv = request(1);
    if (first.dtype != recv.dtype) {
      return differs(first, recv, common_part(first), common_part(recv));
    }
    return uneven(0, first.in[0], 1, recv.out[0]);
  }
  for (int r = 1; r < n; ++r) {
    const std::string a = common_part(first);
    const std::string b = common_part(request(r));
    if (a != b) return differs(first, request(r), a, b);
  }
  const auto check_pairs = [&](bool many_in, bool many_out) {
    const size_t parts = many_in ? first.in.size() / n : first.in.size();
    for (int a = 0; a < n; ++a) {
      if (request(a).in.size() != first.in.size()) {
        return differs(first, request(a), std::to_string(first.in.size()) + " tensors",
                       std::to_string(request(a).in.size()) + " tensors");
      }
    }
    for (size_t part = 0; part < parts; ++part) {
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < n; ++b) {
          const Block& give = request(a).in[many_in ? part * n + b : part];
          const Block& take = request(b).out[many_out ? part * n + a : part];
          std::string text = uneven(a, give, b, take);
          if (!text.empty()) return text;
        }
      }
    }
    return std::string();
  };
  const int root = first.peer;
  switch (first.kind) {
    case Kind::all_reduce:
    case Kind::broadcast:
    case Kind::reduce: return check_pairs(false, false);
    case Kind::all_gather: return check_pairs(false, true);
    case Kind::reduce_scatter: return check_pairs(true, false);
    case Kind::all_to_all: return check_pairs(true, true);
    case Kind::gather:
      for (int r = 0; r < n; ++r) {
        std::string text = uneven(r, request(r).in[0], root, request(root).out[r]);
        if (!text.empty()) return text;
      }
      return {};
    case Kind::scatter:
      for (int r = 0; r < n; ++r) {
        std::string text = uneven(root, request(root).in[r], r, request(r).out[0]);
        if (!text.empty()) return text;
      }
      return {};
    default: return {};
  }
}

void Exchange::add(std::vector<const char*> sources, std::vector<char*> destinations,
                   int64_t count) {
  if (count == 0) return;
  const int64_t step = std::max<int64_t>(1, kPieceBytes / item_size_);
  for (int64_t begin = 0; begin < count; begin += step) {
    pieces_.push_back({transfers_.size(), begin, std::min(count, begin + step)});
  }
  transfers_.push_back({std::move(sources), std::move(destinations)});
}

void Exchange::plan() {
  const Request& first = request(0);
  const int n = static_cast<int>(works_.size());
  const int root = first.peer;
  reduces_ = is_reduction(first.kind);
  op_ = first.reduce;
  dtype_ = first.dtype;
  item_size_ = first.item_size;
  const auto copy = [&](const Block& from, const Block& to) {
    if (from.data != to.data) add({from.data}, {to.data}, from.count);
  };

  switch (first.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      for (size_t i = 0; i < first.in.size(); ++i) {
        std::vector<const char*> sources;
        std::vector<char*> destinations;
        for (int r = 0; r < n; ++r) {
          sources.push_back(request(r).in[i].data);
          if (first.kind == Kind::all_reduce || r == root) {
            destinations.push_back(request(r).out[i].data);
          }
        }
        add(std::move(sources), std::move(destinations), first.in[i].count);
      }
      break;
    case Kind::reduce_scatter:
      for (size_t i = 0; i < first.out.size(); ++i) {
        for (int r = 0; r < n; ++r) {
          std::vector<const char*> sources;
          for (int s = 0; s < n; ++s) sources.push_back(request(s).in[i * n + r].data);
          add(std::move(sources), {request(r).out[i].data}, request(r).out[i].count);
        }
      }
      break;
    case Kind::broadcast:
      for (int r = 0; r < n; ++r) copy(request(root).in[0], request(r).out[0]);
      break;
    case Kind::all_gather:
      for (size_t i = 0; i < first.in.size(); ++i) {
        for (int r = 0; r < n; ++r) {
          for (int s = 0; s < n; ++s) copy(request(s).in[i], request(r).out[i * n + s]);
        }
      }
      break;
    case Kind::gather:
      for (int s = 0; s < n; ++s) copy(request(s).in[0], request(root).out[s]);
      break;
    case Kind::scatter:
      for (int r = 0; r < n; ++r) copy(request(root).in[r], request(r).out[0]);
      break;
    case Kind::all_to_all:
      for (int s = 0; s < n; ++s) {
        for (int r = 0; r < n; ++r) copy(request(s).in[r], request(r).out[s]);
      }
      break;
    case Kind::send:
      copy(request(0).in[0], request(1).out[0]);
      works_[1]->source_ = request(0).caller.rank;
      break;
    case Kind::recv:
    case Kind::barrier: break;
  }
}

void Exchange::run() {
  std::string error;
  try {
    error = mismatch();
    if (error.empty()) plan();
  } catch (const std::exception& failure) {
    // Out of memory here must not leave the other members waiting.
    error = failure.what();
    pieces_.clear();
  }
  if (pieces_.empty()) {
    end_all(error);
    return;
  }
  is_planned_.store(true, std::memory_order_release);
  if (pieces_.size() > 1) {
    // The lock orders this before or after a sleeper's look at is_planned_.
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
  help();
}

void Exchange::help() {
  if (!is_planned_.load(std::memory_order_acquire)) return;
  while (true) {
    const size_t mine = next_piece_.fetch_add(1, std::memory_order_relaxed);
    if (mine >= pieces_.size()) return;
    run_piece(pieces_[mine]);
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces_.size()) {
      end_all({});
      return;
    }
  }
}

void Exchange::run_piece(const Piece& piece) const {
  const Transfer& transfer = transfers_[piece.transfer];
  const int64_t offset = piece.begin * item_size_;
  const int64_t count = piece.end - piece.begin;
  if (!reduces_) {
    std::memcpy(transfer.destinations[0] + offset, transfer.sources[0] + offset,
                count * item_size_);
    return;
  }
  std::vector<const char*> sources = transfer.sources;
  std::vector<char*> destinations = transfer.destinations;
  for (const char*& source : sources) source += offset;
  for (char*& destination : destinations) destination += offset;
  reduce_in_order(op_, dtype_, sources, destinations, count);
}

void Exchange::end_all(const std::string& error) {
  for (auto& work : std::exchange(works_, {})) {
    if (error.empty()) {
      work->end();
    } else {
      work->fail(error);
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Exchange::sleep(const ThreadWork& work, std::chrono::microseconds nap) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, nap, [&] {
    return work.ended() || (is_planned_.load(std::memory_order_acquire) &&
                            next_piece_.load(std::memory_order_relaxed) < pieces_.size());
  });
}

ThreadWork::ThreadWork(Request&& request, std::shared_ptr<Exchange> exchange)
    : PolledWork(std::move(request)), exchange_(std::move(exchange)) {}

void ThreadWork::fail(const std::string& why) { end(backend_error(request_.caller, why)); }

bool ThreadWork::poll() {
  if (!ended()) exchange_->help();
  return ended();
}

}  // namespace dtorch
