#pragma once

#include <c10/util/intrusive_ptr.h>

namespace dtorch {

class MPIWork;

// Complete this work from a thread in the background, because its future has been asked for
// and MPI moves only when it is called. Needs MPI_THREAD_MULTIPLE: without it this waits for
// the work here.
void progress_in_background(const c10::intrusive_ptr<MPIWork>& work);

// The background thread makes no MPI call after this returns.
void stop_progress();

}  // namespace dtorch
