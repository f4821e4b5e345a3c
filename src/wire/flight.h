// The flight record of this process.
#pragma once

#include "wire/flight_record.h"

namespace dtorch {

// Never null. One that nobody reads until open_flight_record().
FlightRecord& flight_record();
// Which thread notes operators: on rank 0 the client's, unless the process hosts a worker.
bool& flight_noted_by_client();
// Raises what FlightRecord::create raises. Returns whether a file was made.
bool open_flight_record(const std::string& path, uint32_t rank, uint32_t world,
                        const std::string& host, const std::string& role);

}  // namespace dtorch
