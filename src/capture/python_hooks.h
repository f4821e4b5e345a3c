// Where capture needs Python: a value to read, metadata to ask a worker for, a sharding to
// work out. None of these runs on a cache hit.
#pragma once

#include <Python.h>

#include "capture/call_entry.h"
#include "capture/call_family.h"

namespace dtorch {

struct PythonHooks {
  PyObject* read = nullptr;      // (tensor) -> CPU tensor with its full value
  PyObject* describe = nullptr;  // (slots) -> [(dtype, sizes, strides, offset), ...]
  PyObject* shard = nullptr;     // see call_sharding_hook
  PyObject* elements = nullptr;  // (name, overload) -> see run_by_elements
  PyObject* sizes = nullptr;     // see work_out_formula
  PyObject* start = nullptr;     // () -> None: the runtime is needed and not started
  PyObject* drain = nullptr;     // () -> None: raises if the workers are gone
  PyObject* synchronize = nullptr;  // () -> None: waits for everything issued
  PyObject* measure = nullptr;      // () -> the figures of DeviceMemory (device/memory.h), in order
  PyObject* reset_peak = nullptr;   // () -> None
  PyObject* empty_cache = nullptr;  // () -> None
  PyObject* arrived = nullptr;      // (storage, dtype) -> the storage's content, a 1-D tensor here
};

PythonHooks& python_hooks();

// The full value of a distributed tensor, on the CPU.
at::Tensor read_value(const at::Tensor& tensor);
// A storage that torch.load has read, as a 1-D tensor on the workers; the same one each time.
at::Tensor arrived_storage(const at::Storage& storage, c10::ScalarType dtype);
std::vector<TensorMeta> describe_slots(const std::vector<uint32_t>& slots);
// Asks dtorch_mpi.sharding how a call with sharded inputs runs; fills the entry's moves,
// output shardings and local sizes. `measured`: its outputs are not known beforehand; where they
// will be cut, the entry gets their global sizes.
void work_out_sharding(const OperatorInfo& info, const c10::IValue* arguments, bool measured,
                       CallEntry* entry);
// Runs an operator that writes to lists one element after the other, each as an operator of its own.
void run_by_elements(const OperatorInfo& info, Stack* stack);
// Asks dtorch_mpi.sizes what the outputs' sizes are for other sizes of the arguments; nullopt where
// that is not known.
std::optional<FamilyFormula> work_out_formula(const OperatorInfo& info, const c10::IValue* arguments,
                                              const CallKey& key, const CallFamily& family,
                                              const FamilyQuestion& question);
// In a catch block: lets a Ctrl-C that came in a Python kernel go on to the user.
void rethrow_interrupt();
// for_old_tensors: a call names tensors of workers that are gone, and can't be.
void start_runtime(bool for_old_tensors = false);
void check_workers();

}  // namespace dtorch
