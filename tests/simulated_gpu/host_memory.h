// Pinned host memory, given out again only once the streams that were recorded for it are past.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <mutex>

namespace simulated_gpu {

at::HostAllocator* host_allocator();
// Held while a copy begins: what is issued must not be seen to be over before all is noted of it.
std::unique_lock<std::recursive_mutex> while_copy_begins();

bool is_pinned(const void* pointer);
// A copy on `stream` that ended at `time` there uses this memory; recorded or not.
void use_pinned(const void* pointer, c10::Stream stream, uint64_t time);

}  // namespace simulated_gpu
