#include "wire/flight.h"

namespace dtorch {
namespace {

std::unique_ptr<FlightRecord>& instance() {
  static auto* record = new std::unique_ptr<FlightRecord>(FlightRecord::create("", 0, 1, "", ""));
  return *record;
}

}  // namespace

FlightRecord& flight_record() { return *instance(); }

bool& flight_noted_by_client() {
  static bool by_client = false;
  return by_client;
}

bool open_flight_record(const std::string& path, uint32_t rank, uint32_t world,
                        const std::string& host, const std::string& role) {
  instance() = FlightRecord::create(path, rank, world, host, role);
  instance()->catch_fatal_signals();
  return instance()->in_file();
}

}  // namespace dtorch
