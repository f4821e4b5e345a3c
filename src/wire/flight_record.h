// What this process was doing, in a mapped file that outlives it.
//
// A rank that is killed can tell nothing, and MPICH's launcher kills all ranks some 15 ms after
// one of them dies. So each process writes its last operators to a shared mapping, whose pages
// the kernel keeps, and a detached watcher (dtorch_mpi/watching/watcher.py) reads them afterwards.
//
// The file: Header, then the operator table, the site table, the ring and the activities, where the
// header says.
// dtorch_mpi/watching/flight_record.py reads it; a test compares the two.
//
//   header     4096 bytes   struct FlightHeader
//   operators  4096 x 64    names by operator id, ending in zeros; unused ones are all zeros
//   sites      8192 x 128   {u32 id, u32 unused, char text[120]} at id modulo 8192
//   ring         64 x 16    {u64 sequence, u32 operator, u32 site} at sequence modulo 64;
//                           the first operator has sequence 1
//   activities   64 x 128   struct Activity: what each of the worker's threads is at
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "wire/activity.h"

namespace dtorch {

enum class FlightState : uint32_t {
  kStarting = 0,
  kRunning = 1,
  kWaiting = 2,
  kFinishing = 3,
  kFinished = 4,
  kFailed = 5,
  kTold = 6,  // failed, and has said so itself: nobody need
};

struct FlightHeader {
  static constexpr uint32_t kVersion = 2;

  char magic[8];  // "DTFLIGHT", stored last: a reader never sees half a header
  uint32_t version;
  uint32_t header_size;
  uint32_t pid;
  uint32_t rank;
  uint32_t world;
  uint32_t state;   // FlightState
  uint32_t signal;  // a fatal signal caught by catch_fatal_signals(), or 0
  uint32_t cause_size;
  uint64_t sequence;  // of the last operator noted
  uint64_t fault_address;
  uint64_t operators_offset;
  uint64_t sites_offset;
  uint64_t ring_offset;
  uint64_t activities_offset;
  uint32_t num_operators;
  uint32_t num_sites;
  uint32_t ring_size;
  uint32_t num_activities;
  char host[64];
  char role[32];
  char cause[2048];
};

struct FlightSite {
  uint32_t id;
  uint32_t unused;
  char text[120];
};

struct FlightEntry {
  uint64_t sequence;
  uint32_t op;
  uint32_t site;
};

class FlightRecord {
 public:
  static constexpr uint32_t kNumOperators = 4096;
  static constexpr uint32_t kOperatorSize = 64;
  static constexpr uint32_t kNumSites = 8192;
  static constexpr uint32_t kRingSize = 64;
  static constexpr uint32_t kNumActivities = 64;
  static constexpr uint32_t kNoSite = 0xFFFFFFFF;

  static constexpr size_t kHeaderSize = 4096;
  static constexpr size_t kOperatorsOffset = kHeaderSize;
  static constexpr size_t kSitesOffset = kOperatorsOffset + kNumOperators * kOperatorSize;
  static constexpr size_t kRingOffset = kSitesOffset + kNumSites * sizeof(FlightSite);
  static constexpr size_t kActivitiesOffset = kRingOffset + kRingSize * sizeof(FlightEntry);
  static constexpr size_t kSize = (kActivitiesOffset + kNumActivities * sizeof(Activity) + 4095) & ~4095ul;

  // Makes the file `path` (which must not exist), or anonymous memory where that fails or `path`
  // is empty; in_file() tells which. Throws std::bad_alloc without memory.
  static std::unique_ptr<FlightRecord> create(const std::string& path, uint32_t rank,
                                              uint32_t world, std::string_view host,
                                              std::string_view role) {
    std::unique_ptr<FlightRecord> record(new FlightRecord(path));
    FlightHeader* header = record->header_;
    header->version = FlightHeader::kVersion;
    header->header_size = kHeaderSize;
    header->pid = static_cast<uint32_t>(getpid());
    header->rank = rank;
    header->world = world;
    header->operators_offset = kOperatorsOffset;
    header->sites_offset = kSitesOffset;
    header->ring_offset = kRingOffset;
    header->activities_offset = kActivitiesOffset;
    header->num_operators = kNumOperators;
    header->num_sites = kNumSites;
    header->ring_size = kRingSize;
    header->num_activities = kNumActivities;
    copy_head(header->host, sizeof(header->host), host);
    copy_head(header->role, sizeof(header->role), role);
    std::atomic_signal_fence(std::memory_order_release);
    std::memcpy(header->magic, "DTFLIGHT", 8);
    return record;
  }

  FlightRecord(const FlightRecord&) = delete;
  FlightRecord& operator=(const FlightRecord&) = delete;

  ~FlightRecord() {
    if (current() == this) current() = nullptr;
    if (signal_record() == this) signal_record() = nullptr;
    munmap(base_, kSize);
  }

  bool in_file() const { return in_file_; }

  // The operator `op` is about to run, issued at `site`. Meant for one thread; with several, an
  // entry may be lost or mixed, and nothing worse.
  void note(uint32_t op, uint32_t site) noexcept {
    const uint64_t sequence = load(sequence_) + 1;
    store(sequence_, sequence);
    FlightEntry& entry = ring_[sequence % kRingSize];
    store(entry.op, op);
    store(entry.site, site);
    store(entry.sequence, sequence);
    store(header_->sequence, sequence);
  }

  // A place for what one more thread is at; null where all are taken.
  Activity* take_activity(uint32_t graph) noexcept {
    for (uint32_t i = 0; i < kNumActivities; ++i) {
      uint32_t expected = 0;
      if (!std::atomic_ref(activities_[i].is_used).compare_exchange_strong(expected, 1)) continue;
      activities_[i].rest();
      Activity::set(activities_[i].graph, graph);
      return &activities_[i];
    }
    return nullptr;
  }
  void give_back(Activity* activity) noexcept { Activity::set(activity->is_used, 0u); }

  // Names an operator; ids beyond the table stay "op #id".
  void define_op(uint32_t op, std::string_view name) noexcept {
    if (op >= kNumOperators) return;
    copy_head(base_ + kOperatorsOffset + size_t{op} * kOperatorSize, kOperatorSize, name);
  }

  // Gives a site's "file:line" text; keeps its end when it is too long. Forgets the site 8192
  // ids before it.
  void define_site(uint32_t site, std::string_view text) noexcept {
    FlightSite& entry = sites_[site % kNumSites];
    store(entry.id, kNoSite);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    constexpr size_t room = sizeof(entry.text) - 1;
    if (text.size() > room) {
      std::memcpy(entry.text, "...", 3);
      text.remove_prefix(text.size() - (room - 3));
      copy_head(entry.text + 3, sizeof(entry.text) - 3, text);
    } else {
      copy_head(entry.text, sizeof(entry.text), text);
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
    store(entry.id, site);
  }

  void set_state(FlightState state) noexcept {
    store(header_->state, static_cast<uint32_t>(state));
  }

  FlightState state() const noexcept { return static_cast<FlightState>(load(header_->state)); }

  // Why this process is going to end. The first cause stays: later ones follow from it.
  void set_cause(std::string_view cause) noexcept {
    if (load(header_->cause_size) != 0) return;
    const size_t size = std::min(cause.size(), sizeof(header_->cause));
    std::memcpy(header_->cause, cause.data(), size);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    store(header_->cause_size, static_cast<uint32_t>(size));
  }

  // Notes a fatal signal in the record before the handler that was there (Python's faulthandler,
  // or the default) gets it. Kernels before 6.15 do not tell the watcher the exit status.
  void catch_fatal_signals() {
    signal_record() = this;
    for (size_t i = 0; i < kNumFatal; ++i) {
      struct sigaction action = {};
      action.sa_sigaction = &FlightRecord::on_fatal_signal;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigemptyset(&action.sa_mask);
      sigaction(kFatal[i], &action, &previous()[i]);
    }
  }

 private:
  static constexpr size_t kNumFatal = 5;
  static constexpr int kFatal[kNumFatal] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

  explicit FlightRecord(const std::string& path) {
    void* memory = MAP_FAILED;
    if (!path.empty()) {
      const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (fd >= 0) {
        // Blocks are reserved now: a full disk must not become a SIGBUS in note().
        if (posix_fallocate(fd, 0, kSize) == 0) {
          memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        }
        close(fd);
        if (memory == MAP_FAILED) unlink(path.c_str());
      }
    }
    in_file_ = memory != MAP_FAILED;
    if (!in_file_) {
      memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
    }
    base_ = static_cast<char*>(memory);
    header_ = reinterpret_cast<FlightHeader*>(base_);
    sites_ = reinterpret_cast<FlightSite*>(base_ + kSitesOffset);
    ring_ = reinterpret_cast<FlightEntry*>(base_ + kRingOffset);
    activities_ = reinterpret_cast<Activity*>(base_ + kActivitiesOffset);
    if (in_file_) {
      current() = this;
      static const int registered = pthread_atfork(nullptr, nullptr, &FlightRecord::after_fork);
      (void)registered;
    }
  }

  // A forked child (a DataLoader's worker) must not write its end into its parent's record.
  static void after_fork() {
    if (FlightRecord* record = current()) {
      mmap(record->base_, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
           -1, 0);
    }
  }

  static void on_fatal_signal(int number, siginfo_t* info, void*) {
    if (FlightRecord* record = signal_record()) {
      store(record->header_->signal, static_cast<uint32_t>(number));
      store(record->header_->fault_address, reinterpret_cast<uint64_t>(info->si_addr));
    }
    for (size_t i = 0; i < kNumFatal; ++i) {
      if (kFatal[i] == number) sigaction(number, &previous()[i], nullptr);
    }
    // A fault comes again by itself when the handler returns; a signal that was sent does not.
    if (info->si_code <= 0) raise(number);
  }

  template <typename T>
  static void store(T& place, T value) noexcept {
    std::atomic_ref<T>(place).store(value, std::memory_order_relaxed);
  }
  template <typename T>
  static T load(T& place) noexcept {
    return std::atomic_ref<T>(place).load(std::memory_order_relaxed);
  }

  static void copy_head(char* place, size_t room, std::string_view text) noexcept {
    const size_t size = std::min(text.size(), room - 1);
    std::memcpy(place, text.data(), size);
    std::memset(place + size, 0, room - size);
  }

  // The process's one record in a file.
  static FlightRecord*& current() {
    static FlightRecord* record = nullptr;
    return record;
  }
  static FlightRecord*& signal_record() {
    static FlightRecord* record = nullptr;
    return record;
  }
  static struct sigaction* previous() {
    static struct sigaction actions[kNumFatal];
    return actions;
  }

  char* base_ = nullptr;
  FlightHeader* header_ = nullptr;
  FlightSite* sites_ = nullptr;
  FlightEntry* ring_ = nullptr;
  Activity* activities_ = nullptr;
  uint64_t sequence_ = 0;
  bool in_file_ = false;
};

static_assert(sizeof(FlightHeader) <= FlightRecord::kHeaderSize);
static_assert(sizeof(FlightSite) == 128 && sizeof(FlightEntry) == 16);

}  // namespace dtorch
