// The thread that runs a worker.
#pragma once

#include <memory>

#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/resize_warnings.h"
#include "worker/state.h"

namespace dtorch {

// The worker that runs in this thread, for Python kernels that ask.
inline thread_local WorkerState* worker_of_thread = nullptr;
inline WorkerState* this_worker() { return worker_of_thread; }
inline void set_this_worker(WorkerState* state) { worker_of_thread = state; }

// Below autograd, but not InferenceMode: values read in this process stay usable for autograd and in-place
// operators. What is resized, the client says.
class BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView guard_;
  SilentResizing silent_;
};

}  // namespace dtorch
