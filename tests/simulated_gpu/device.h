// Devices, streams and memory of the simulated GPU.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <string>

namespace simulated_gpu {

// Registers the device guard and the device's allocator; once a process.
void register_devices(int devices);

c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex device);

// Allocates on the current device and its current stream.
c10::Allocator* device_allocator();
// The memory of a CPU kernel's result, as the device's.
c10::DataPtr adopt(c10::Storage cpu_storage, c10::DeviceIndex device, const std::string& what);

struct Block;
// One owner less.
void release_block(Block* block);

}  // namespace simulated_gpu
