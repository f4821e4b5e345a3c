// The way of an operator call into a record.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "capture/call_entry.h"
#include "capture/record_queue.h"
#include "tensor/slot.h"
#include "wire/record.h"

namespace dtorch {

class Writer;

// The boxed kernel of the dtorch device, for every operator.
void capture(const c10::OperatorHandle& op, Stack* stack);

// Registers capture() as the fallback and for the composite operators that would otherwise
// run before it. Returns how many operators were named.
size_t register_capture();
// The same for a user's operator; false where there is nothing to do. A kernel that the user
// registered for the device stays.
bool capture_operator(const std::string& name, const std::string& overload);
// For all there are. Returns how many it was.
size_t capture_users_operators();

// Sends a CPU tensor's value to the workers, each its own part under `sharding`.
at::Tensor upload(const at::Tensor& tensor, uint32_t sharding);
// A copy of a distributed tensor under another sharding; `mesh_sizes` as the tensor's own.
at::Tensor redistribute(const at::Tensor& tensor, uint32_t from, uint32_t to);
// The record of that, and a bound for its length. into: the result goes into `output`'s memory.
size_t redistribute_words(const at::Tensor& tensor);
void write_redistribute(Writer& writer, uint32_t input, uint32_t output, const at::Tensor& tensor,
                        uint32_t from, uint32_t to, bool into, uint32_t site);
// Asks the workers of this thread's graph for a slot's metadata, or for a sign of life.
void emit_request(Kind kind, uint32_t slot, const PromiseName& promise);
// Asks for a tensor's value. Returns the graph whose workers are asked.
uint32_t request_value(const at::Tensor& tensor, const PromiseName& promise, uint32_t sharding);
// A function of dtorch_mpi.kernels, run by every worker; outputs as described by `metas`.
std::vector<at::Tensor> call_python_kernel(const std::string& name, const std::string& packed,
                                           const std::vector<TensorMeta>& metas);
void define_mesh(uint32_t number, c10::IntArrayRef shape, c10::IntArrayRef workers);
// `placements`: one an axis, as Placement::packed of sharding/placement.h.
void define_sharding(uint32_t number, uint32_t mesh, c10::IntArrayRef placements);
// Whether every worker's part is a piece of the value: no axis holds partial sums.
bool sharding_is_splitting(uint32_t sharding);
// Whether the two differ on axes only that hold partial sums under `from`.
bool only_reduces(uint32_t from, uint32_t to);
// Whether every worker of the mesh has all of the value.
bool sharding_is_whole(uint32_t sharding);
// Whether a tensor of so many dims has those that it cuts.
bool sharding_fits(uint32_t sharding, int64_t num_dims);
// The sharding on the same mesh that leaves every worker all of the value.
uint32_t whole_sharding(uint32_t sharding);
// Notes the end of a step of the program.
void emit_mark();
void emit_shutdown();

// Says that this thread executes records, as long as that is so: it would wait for itself.
void set_executes_records(bool executes);
// Raises RuntimeError in such a thread.
void check_is_client();

// Where the user's program is, by number.
uint32_t current_site();
// The number to write in a record, defined if it is new; hold the stream lock.
uint32_t site_on_workers(uint32_t site);
// Raises for a tensor of workers that were shut down.
inline void check_alive(const Slot& slot) { slot.home->check_alive(slot.generation); }

struct CaptureCounters {
  uint64_t operators = 0, misses = 0, new_sizes = 0, uploads = 0, upload_bytes = 0, reads = 0, moves = 0;
};
CaptureCounters& counters();

}  // namespace dtorch
