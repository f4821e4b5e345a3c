// PyTorch warns of an out= that it resizes wherever the kernel runs: here on stand-ins of sizes that
// mean nothing, and on each worker. The client knows, and says it once.
#pragma once

#include <string_view>

#include <c10/util/Exception.h>

namespace dtorch {

// Passes warnings on to the handler before it, all but those.
class WithoutResizeWarnings : public c10::WarningHandler {
 public:
  explicit WithoutResizeWarnings(c10::WarningHandler* next) : next_(next) {}

  void process(const c10::Warning& warning) override {
    if (std::string_view(warning.msg()).find("was resized since it had shape") == std::string_view::npos) {
      next_->process(warning);
    }
  }

 private:
  c10::WarningHandler* next_;
};

// As long as it lives, in this thread.
class SilentResizing {
 public:
  SilentResizing() : handler_(c10::WarningUtils::get_warning_handler()), guard_(&handler_) {}

 private:
  WithoutResizeWarnings handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace dtorch
