#include "profiling/client.h"

#include "profiling/record_event.h"

namespace dtorch {
namespace {

struct ThisThread {
  uint32_t number;
  int64_t began = 0;

  ThisThread() {
    static std::atomic<uint32_t> threads{0};
    number = threads.fetch_add(1, std::memory_order_relaxed);
  }
};

ThisThread& this_thread() {
  thread_local ThisThread thread;
  return thread;
}

}  // namespace

// Never destroyed: tensors that are freed at the end of the process write records too.
Timeline& client_timeline = *new Timeline;

void begin_issue() { this_thread().began = steady_ns(); }

void note_issue(const uint32_t* record, uint64_t number) {
  Event event;
  if (!describe_record(record, &event)) return;
  auto& thread = this_thread();
  event.begin = thread.began;
  event.end = steady_ns();
  event.record = number;
  event.thread = thread.number;
  thread.began = event.end;  // where one call issues several records
  client_timeline.note(event);
}

}  // namespace dtorch
