// A process that prints its stack when it is asked to by a signal.
#pragma once

#include <execinfo.h>
#include <signal.h>

namespace dtorch {

// Of this process; installed once.
class StackRequests {
 public:
  // On the signal `number`, the handler that was there before (Python's faulthandler) runs, then
  // the native stack of the thread that got it is written to `fd`.
  static void answer(int number, int fd) {
    void* frame;
    backtrace(&frame, 1);  // loads what it needs, which a handler must not
    fd_ = fd;
    struct sigaction action = {};
    action.sa_handler = &StackRequests::on_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, &before_);
  }

 private:
  static void on_signal(int number) {
    if (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN) before_.sa_handler(number);
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), fd_);
  }

  static inline int fd_ = -1;
  static inline struct sigaction before_ = {};
};

}  // namespace dtorch
