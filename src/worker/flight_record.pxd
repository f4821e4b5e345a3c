# The flight record of worker/flight_record.h, for the Cython rooms.
from libc.stdint cimport uint32_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string


cdef extern from "worker/flight_record.h" namespace "dtorch" nogil:
    cppclass FlightState "dtorch::FlightState":
        pass
    FlightState flight_starting "dtorch::FlightState::kStarting"
    FlightState flight_running "dtorch::FlightState::kRunning"
    FlightState flight_waiting "dtorch::FlightState::kWaiting"
    FlightState flight_finishing "dtorch::FlightState::kFinishing"
    FlightState flight_finished "dtorch::FlightState::kFinished"
    FlightState flight_failed "dtorch::FlightState::kFailed"

    cppclass FlightRecord "dtorch::FlightRecord":
        @staticmethod
        unique_ptr[FlightRecord] create(
            const string& path, uint32_t rank, uint32_t world, string host, string role
        ) except +
        cbool in_file()
        void note(uint32_t op, uint32_t site)
        void define_op(uint32_t op, string name)
        void define_site(uint32_t site, string text)
        void set_state(FlightState state)
        void set_cause(string cause)
        void catch_fatal_signals()
