# distutils: language = c++
"""The capture stage's face to Python: registration, requests in the stream, counters."""

from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from libtorch cimport THPVariable_Check, THPVariable_Unpack, THPVariable_Wrap, Tensor
from profiling.timeline cimport Timeline


cdef extern from "c10/core/ScalarType.h" namespace "c10":
    cppclass ScalarType "c10::ScalarType":
        pass


cdef extern from "c10/util/ArrayRef.h" namespace "c10":
    cppclass IntArrayRef "c10::IntArrayRef":
        IntArrayRef(const int64_t* data, size_t length)


cdef extern from *:
    """
    #include <stdlib.h>
    #include <unistd.h>

    #include <pybind11/pybind11.h>
    #include <torch/csrc/Exceptions.h>
    #include <torch/csrc/utils/pybind.h>

    #include "capture/autocast.h"
    #include "capture/between_graphs.h"
    #include "capture/call_site.h"
    #include "capture/capture.h"
    #include "capture/definitions.h"
    #include "capture/python_hooks.h"
    #include "capture/record_queue.h"
    #include "capture/workers_device.h"
    #include "tensor/device.h"
    #include "tensor/generator.h"
    #include "tensor/slot.h"

    // Only the C library knows the code with which the interpreter ends.
    static void dtorch_end_with(int instead_of, int code) {
      on_exit([](int ends_with, void* codes) {
        const auto both = reinterpret_cast<intptr_t>(codes);
        if (ends_with != both >> 8) return;
        std::fflush(nullptr);
        _exit(both & 0xFF);
      }, reinterpret_cast<void*>(static_cast<intptr_t>(instead_of << 8 | code)));
    }

    // Needs the GIL.
    static pybind11::object dtorch_call(PyObject* hook) {
      auto result = pybind11::reinterpret_steal<pybind11::object>(PyObject_CallNoArgs(hook));
      if (!result) { python_error error; error.persist(); throw error; }
      return result;
    }
    static void dtorch_register() {
      dtorch::register_device({
        .synchronize = [] {
          pybind11::gil_scoped_acquire gil;
          dtorch_call(dtorch::python_hooks().synchronize);
        },
        .measure = [] {
          pybind11::gil_scoped_acquire gil;
          const auto found = dtorch_call(dtorch::python_hooks().measure);
          const auto [a, b, c, d, e, f, g, h] = found.cast<std::array<int64_t, 8>>();
          return dtorch::DeviceMemory{a, b, c, d, e, f, g, h};
        },
        .reset_peak = [] {
          pybind11::gil_scoped_acquire gil;
          dtorch_call(dtorch::python_hooks().reset_peak);
        },
        .empty_cache = [] {
          pybind11::gil_scoped_acquire gil;
          dtorch_call(dtorch::python_hooks().empty_cache);
        },
      });
      dtorch::register_capture();
      dtorch::register_autocast(dtorch::workers_device);
    }
    static bool dtorch_set_workers_device(const std::string& type) {
      const auto known = c10::Device(type).type();
      if (known == dtorch::workers_device.exchange(known)) return false;
      dtorch::register_autocast(known);
      return true;
    }
    static void dtorch_open_queue(dtorch::RecordQueue& queue) {
      queue.while_waiting = [] { dtorch::check_workers(); };
      queue.open();
      std::lock_guard<dtorch::SpinLock> guard(queue.lock);
      if (queue.graph == 0) dtorch::Definitions::get().begin_anew();
      dtorch::BetweenGraphs::get().begin(queue.graph);
    }

    static void dtorch_append_meta(std::vector<dtorch::TensorMeta>& metas, int dtype,
                                   const std::vector<int64_t>& sizes, uint32_t sharding) {
      dtorch::TensorMeta meta;
      meta.dtype = static_cast<c10::ScalarType>(dtype);
      meta.sizes.assign(sizes.begin(), sizes.end());
      meta.strides.resize(sizes.size());
      int64_t stride = 1;
      for (size_t i = sizes.size(); i-- > 0;) {
        meta.strides[i] = stride;
        stride *= std::max<int64_t>(1, sizes[i]);
      }
      meta.sharding = sharding;
      metas.push_back(std::move(meta));
    }
    static PyObject* dtorch_default_generator() {
      return pybind11::cast(dtorch::default_generator()).release().ptr();
    }
    static dtorch::PromiseName dtorch_promise(int home, uint32_t id, uint64_t place) {
      return {static_cast<dtorch::Home>(home), id, place};
    }
    """
    void dtorch_register() except +
    cbool dtorch_set_workers_device(const string&) except +
    void dtorch_end_with(int instead_of, int code)
    void dtorch_append_meta(vector[TensorMeta]&, int, const vector[int64_t]&, uint32_t)
    object dtorch_default_generator() except +
    void dtorch_open_queue(RecordQueue&)
    PromiseName dtorch_promise(int home, uint32_t id, uint64_t place)


cdef extern from "wire/record.h" namespace "dtorch":
    cppclass PromiseName:
        pass
    cppclass Kind "dtorch::Kind":
        pass
    Kind kSync "dtorch::Kind::kSync"
    Kind kDescribe "dtorch::Kind::kDescribe"


cdef extern from "capture/record_queue.h" namespace "dtorch" nogil:
    cppclass RecordQueue:
        @staticmethod
        RecordQueue& main()
        @staticmethod
        RecordQueue& current()
        @staticmethod
        void set_current(RecordQueue&)
        @staticmethod
        RecordQueue& of(uint32_t graph)
        uint32_t graph
        void close()
        cbool is_open()
        void flush() nogil
        void forget_after_fork()
        uint64_t issued()
        uint64_t executed()
        uint64_t bytes_issued()
        uint64_t bytes_executed()
        uint64_t live_slots()
        size_t num_imports
        uint64_t max_records
        uint64_t max_bytes


cdef extern from "capture/call_entry.h" namespace "dtorch":
    cppclass TensorMeta:
        pass
    size_t num_entries()
    void forget_entries()


cdef extern from "capture/capture.h" namespace "dtorch":
    Tensor c_upload "dtorch::upload"(const Tensor&, uint32_t) except +
    Tensor c_redistribute "dtorch::redistribute"(const Tensor&, uint32_t, uint32_t) except +
    void emit_request(Kind, uint32_t, const PromiseName&) except +
    uint32_t c_request_value "dtorch::request_value"(
        const Tensor&, const PromiseName&, uint32_t) except +
    void check_alive(const Slot&) except +
    vector[Tensor] c_call_python_kernel "dtorch::call_python_kernel"(
        const string&, const string&, const vector[TensorMeta]&) except +
    void c_define_mesh "dtorch::define_mesh"(uint32_t, IntArrayRef, IntArrayRef) except +
    void c_define_sharding "dtorch::define_sharding"(uint32_t, uint32_t, IntArrayRef) except +
    cbool c_capture_operator "dtorch::capture_operator"(const string&, const string&) except +
    size_t c_capture_users_operators "dtorch::capture_users_operators"() except +
    void c_emit_mark "dtorch::emit_mark"() except +
    void c_emit_shutdown "dtorch::emit_shutdown"() except +
    cppclass CaptureCounters:
        uint64_t operators, misses, new_sizes, uploads, upload_bytes, reads, moves
    CaptureCounters& c_counters "dtorch::counters"()


cdef extern from *:
    """
    #include "capture/known_calls.h"

    static pybind11::object dtorch_meta(const dtorch::TensorMeta& meta) {
      const auto ints = [](const auto& values) {
        return pybind11::tuple(pybind11::cast(std::vector<int64_t>(values.begin(), values.end())));
      };
      return pybind11::make_tuple(static_cast<int>(meta.dtype), ints(meta.sizes),
                                  ints(meta.strides), meta.offset, meta.sharding);
    }
    static PyObject* dtorch_known_call(uint32_t number) {
      const auto call = dtorch::known_call(number);
      if (!call) return pybind11::none().release().ptr();
      pybind11::list inputs, outputs;
      for (const auto& meta : call->inputs) inputs.append(dtorch_meta(meta));
      for (const auto& output : call->outputs) {
        pybind11::list tensors;
        const bool made = output.kind == dtorch::OutputKind::kTensor ||
                          output.kind == dtorch::OutputKind::kList;
        for (const auto& meta : output.tensors) {
          if (made) tensors.append(dtorch_meta(meta));
        }
        outputs.append(tensors);
      }
      return pybind11::make_tuple(call->name, inputs, outputs).release().ptr();
    }
    """
    object dtorch_known_call(uint32_t number)
    string c_operator_name "dtorch::operator_name"(uint32_t)
    uint32_t c_number_operator "dtorch::number_operator"(const string&, const string&) except +
    cbool c_is_users_operator "dtorch::is_users_operator"(const string&)
    cbool c_forget_calls "dtorch::forget_calls"(const string&, const string&)


cdef extern from *:
    """
    #include "profiling/client.h"

    static void dtorch_begin_timeline(size_t capacity) {
      std::vector<dtorch::Event> room(capacity);
      std::lock_guard<dtorch::SpinLock> guard(dtorch::RecordQueue::lock);
      dtorch::client_timeline.start(std::move(room));
    }
    static void dtorch_stop_timeline() {
      std::lock_guard<dtorch::SpinLock> guard(dtorch::RecordQueue::lock);
      dtorch::client_timeline.stop();
    }
    """
    void dtorch_begin_timeline(size_t) except +
    void dtorch_stop_timeline()
    Timeline& client_timeline "dtorch::client_timeline"


cdef extern from "capture/call_site.h" namespace "dtorch":
    string c_site_text "dtorch::site_text"(uint32_t site)
    void c_add_library_folder "dtorch::add_library_folder"(const string&)


cdef extern from "capture/python_hooks.h" namespace "dtorch":
    cppclass PythonHooks:
        PyObject* read
        PyObject* describe
        PyObject* shard
        PyObject* elements
        PyObject* sizes
        PyObject* start
        PyObject* drain
        PyObject* synchronize
        PyObject* measure
        PyObject* reset_peak
        PyObject* empty_cache
        PyObject* arrived
    PythonHooks& python_hooks()


cdef extern from "wire/native_stack.h" namespace "dtorch":
    void c_answer_stack_requests "dtorch::StackRequests::answer"(int number, int fd)


cdef extern from "wire/flight.h" namespace "dtorch":
    cppclass FlightRecord:
        void set_state(FlightState)
        void set_cause(const string&)
    cdef enum class FlightState:
        kRunning
        kFinishing
        kFinished
        kFailed
        kTold
    FlightRecord& flight_record()
    cbool& flight_noted_by_client()
    cbool c_open_flight_record "dtorch::open_flight_record"(
        const string&, uint32_t, uint32_t, const string&, const string&) except +


cdef extern from "tensor/slot.h" namespace "dtorch":
    cppclass Slot:
        uint32_t sharding
        RecordQueue* home
    Slot& slot_of(const Tensor&) except +
    cbool on_workers(const Tensor&)


def set_workers_device(str type):
    """Tell what kind of device the workers compute on: cpu, cuda and so on. When a job starts.

    Returns whether it is another kind than before.
    """
    return dtorch_set_workers_device(type.encode())


def register(*, read, describe, shard, elements, sizes, start, drain, synchronize, measure,
             reset_peak, empty_cache, arrived):
    """Register the device with PyTorch; once a process, when dtorch_mpi is imported."""
    cdef PythonHooks* hooks = &python_hooks()
    for hook in (read, describe, shard, elements, sizes, start, drain, synchronize, measure,
                 reset_peak, empty_cache, arrived):
        Py_INCREF(hook)
    hooks.read = <PyObject*>read
    hooks.describe = <PyObject*>describe
    hooks.shard = <PyObject*>shard
    hooks.elements = <PyObject*>elements
    hooks.sizes = <PyObject*>sizes
    hooks.start = <PyObject*>start
    hooks.drain = <PyObject*>drain
    hooks.synchronize = <PyObject*>synchronize
    hooks.measure = <PyObject*>measure
    hooks.reset_peak = <PyObject*>reset_peak
    hooks.empty_cache = <PyObject*>empty_cache
    hooks.arrived = <PyObject*>arrived
    dtorch_register()


cdef const Tensor* distributed(object tensor) except NULL:
    if not THPVariable_Check(tensor):
        raise TypeError(
            f"expected a torch.Tensor on the dtorch device, got {type(tensor).__name__}")
    cdef const Tensor* unpacked = &THPVariable_Unpack(tensor)
    if not on_workers(unpacked[0]):
        raise ValueError(f"expected a tensor on the dtorch device, got one on {tensor.device}; "
                         "move it with .to('dtorch') or dtorch_mpi.distribute_tensor")
    return unpacked


cdef Slot* live_slot(object tensor) except NULL:
    cdef Slot* found = &slot_of(distributed(tensor)[0])
    check_alive(found[0])
    return found


def default_generator():
    """The device's torch.Generator."""
    return dtorch_default_generator()


def graph_of(tensor):
    """The number of the graph whose workers have the tensor; RuntimeError if they are gone."""
    return live_slot(tensor).home.graph


def sharding(tensor):
    """The number of the tensor's sharding; 0 is replicated on the default mesh.

    RuntimeError if the workers that hold it are gone, and with them what the number means.
    """
    return live_slot(tensor).sharding


def upload(tensor, uint32_t sharding):
    """Send a CPU tensor's value to the workers, each its part under the sharding."""
    return THPVariable_Wrap(c_upload(THPVariable_Unpack(tensor), sharding))


def redistribute(tensor, uint32_t source, uint32_t target):
    """A new tensor with the same value under another sharding."""
    return THPVariable_Wrap(c_redistribute(distributed(tensor)[0], source, target))


def request_value(tensor, promise, uint32_t sharding):
    """Returns the number of the graph whose workers answer."""
    home, number, place = promise
    return c_request_value(distributed(tensor)[0], dtorch_promise(home, number, place), sharding)


def request_description(uint32_t slot, promise):
    home, number, place = promise
    emit_request(kDescribe, slot, dtorch_promise(home, number, place))


def request_sync(promise):
    home, number, place = promise
    emit_request(kSync, 0, dtorch_promise(home, number, place))


def call_python_kernel(str name, bytes packed, outputs):
    """Run a registered Python function on every worker.

    outputs: (dtype number, sizes, sharding number) of each tensor that it returns.
    """
    cdef vector[TensorMeta] metas
    for dtype, sizes, number in outputs:
        dtorch_append_meta(metas, dtype, sizes, number)
    cdef vector[Tensor] results = c_call_python_kernel(name.encode(), packed, metas)
    return [THPVariable_Wrap(results[i]) for i in range(results.size())]


def define_mesh(uint32_t number, vector[int64_t] shape, vector[int64_t] workers):
    c_define_mesh(number, IntArrayRef(shape.data(), shape.size()),
                  IntArrayRef(workers.data(), workers.size()))


def define_sharding(uint32_t number, uint32_t mesh, vector[int64_t] placements):
    c_define_sharding(number, mesh, IntArrayRef(placements.data(), placements.size()))


def known_call(uint32_t number):
    """(operator, inputs, outputs) of calls with this number in their records, or None.

    inputs: (dtype, sizes, strides, offset, sharding) of each distributed tensor, in the order of
    the arguments, as the workers get them. outputs: a list of the same for each return, empty for
    one that makes no tensor.
    """
    return dtorch_known_call(number)


def number_operator(str name):
    """The number by which records name an operator such as aten::add.Tensor.

    Raises RuntimeError for one that is not registered.
    """
    packet, _, overload = name.partition(".")
    return c_number_operator(packet.encode(), overload.encode())


def is_users_operator(str name):
    """Whether an operator such as ns::op is neither PyTorch's nor dtorch_mpi's."""
    return c_is_users_operator(name.encode())


def capture_operator(str name):
    """Have calls of a user's operator such as ns::op.overload captured, not run on the client.

    Only where its composite kernel would be run; False where there is nothing to do.
    """
    packet, _, overload = name.partition(".")
    return c_capture_operator(packet.encode(), overload.encode())


def capture_users_operators():
    """The same for all users' operators that there are; returns how many it was."""
    return c_capture_users_operators()


def forget_operator(str name):
    """What is known of an operator such as ns::op.overload holds no more: it was redefined.

    Returns whether it was called before.
    """
    packet, _, overload = name.partition(".")
    return c_forget_calls(packet.encode(), overload.encode())


def operator_name(uint32_t number):
    return c_operator_name(number).decode()


def emit_mark():
    c_emit_mark()


def emit_shutdown():
    c_emit_shutdown()


def flush(uint32_t graph):
    """Have a graph's controller send what there is, at once."""
    cdef RecordQueue* queue = &RecordQueue.of(graph)
    with nogil:
        queue.flush()


def current_graph():
    """The number of the graph that this thread's operators go to."""
    return RecordQueue.current().graph


def set_current_graph(uint32_t graph):
    RecordQueue.set_current(RecordQueue.of(graph))


def open_queue(uint32_t graph, uint64_t max_records, uint64_t max_bytes):
    """Take records for the workers of a graph; 0 is the main one, which begins a job."""
    cdef RecordQueue* queue = &RecordQueue.of(graph)
    queue.max_records = max_records
    queue.max_bytes = max_bytes
    if graph == 0:
        forget_entries()
    dtorch_open_queue(queue[0])


def records_issued(uint32_t graph):
    """How many records a graph's workers have been or will be sent, so far."""
    return RecordQueue.of(graph).issued()


def live_slots(uint32_t graph):
    """How many of a graph's own tensors are alive."""
    cdef RecordQueue* queue = &RecordQueue.of(graph)
    return queue.live_slots() - queue.num_imports


def end_with(int code, int instead_of):
    """Have the process end with a code where it would end with another one."""
    dtorch_end_with(instead_of, code)


def close_queue(uint32_t graph):
    RecordQueue.of(graph).close()


def forget_after_fork(runtime, graphs):
    """In a forked child: take no records any more, and never free the parent's runtime.

    graphs: numbers of those beside the main one.
    """
    Py_INCREF(runtime)
    RecordQueue.main().forget_after_fork()
    for graph in graphs:
        RecordQueue.of(graph).forget_after_fork()
    RecordQueue.set_current(RecordQueue.main())


def site_text(uint32_t site):
    """file:line of a call site that a worker named by number."""
    return c_site_text(site).decode("utf-8", "replace")


def add_library_folder(str folder):
    c_add_library_folder(folder.encode())


def begin_timeline(size_t capacity):
    """Note the records that are issued from now on, the last `capacity` of them."""
    dtorch_begin_timeline(capacity)


def stop_timeline():
    dtorch_stop_timeline()


def take_timeline():
    """(events as bytes, how many were lost) of a timeline that has been stopped; forgets them."""
    events = client_timeline.bytes(0, client_timeline.size())
    lost = client_timeline.lost()
    client_timeline.clear()
    return events, lost


def open_flight_record(str path, uint32_t rank, uint32_t world, str host, str role, *, by_client):
    """Begin this process's flight record; True if it is in a file that a watcher can read.

    by_client: whether the client's thread notes operators, rather than a worker's.
    """
    in_file = c_open_flight_record(path.encode(), rank, world, host.encode(), role.encode())
    (&flight_noted_by_client())[0] = by_client
    flight_record().set_state(FlightState.kRunning)
    return in_file


def flight_finished():
    """This process ends as it should: its watcher leaves in silence."""
    flight_record().set_state(FlightState.kFinished)


def flight_failed(str cause):
    """Why this process is going to end."""
    flight_record().set_cause(cause.encode())
    flight_record().set_state(FlightState.kFailed)


def flight_told():
    """This process is going to end by a failure of which it has told: its watcher need not."""
    flight_record().set_state(FlightState.kTold)


def answer_stack_requests(int number, int fd):
    """On this signal, whatever handles it now does so, then the native stack is written to fd."""
    c_answer_stack_requests(number, fd)


def counters():
    """Numbers since the start: operators issued, cache misses, uploads and their bytes, ..."""
    cdef CaptureCounters* numbers = &c_counters()
    cdef RecordQueue* queue = &RecordQueue.main()
    return {
        "operators": numbers.operators, "misses": numbers.misses,
        "new_sizes": numbers.new_sizes, "uploads": numbers.uploads,
        "upload_bytes": numbers.upload_bytes, "reads": numbers.reads, "moves": numbers.moves,
        "records_issued": queue.issued(), "records_executed": queue.executed(),
        "bytes_issued": queue.bytes_issued(), "bytes_executed": queue.bytes_executed(),
        "live_slots": queue.live_slots(), "cached_calls": num_entries(),
    }
