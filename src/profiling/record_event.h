// The event of one of the program's records, the same on rank 0 and on a worker.
#pragma once

#include <string_view>

#include "profiling/timeline.h"
#include "wire/reader.h"

namespace dtorch {

// FNV-1a (Fowler, Noll and Vo), by which rank 0 finds a kernel's name among those it knows.
inline uint32_t name_hash(std::string_view name) {
  uint32_t hash = 0x811c9dc5;
  for (const unsigned char byte : name) hash = (hash ^ byte) * 0x01000193;
  return hash;
}

// Says what the record does. False: of a kind that no timeline shows, such as a free. The record
// must be well-formed; raises WireError where it is not.
inline bool describe_record(const uint32_t* record, Event* event) {
  const auto kind = static_cast<Kind>(record[1] & 0xffff);
  event->kind = static_cast<uint16_t>(kind);
  event->number = record[2];
  event->site = record[3];
  Reader reader = Reader::record(record, record + record[0]);
  reader.enter();
  const auto take_tensor = [&] {
    event->dtype = static_cast<uint32_t>(reader.dtype());
    const auto sizes = reader.int_list();
    for (size_t d = 0; d < sizes.size() && d < std::size(event->amounts); ++d) event->amounts[d] = sizes[d];
  };
  switch (kind) {
    case Kind::kOperator: event->detail = reader.word(); return true;
    case Kind::kUpload: take_tensor(); return true;
    case Kind::kRedistribute:
      reader.expect(Tag::kOutput);
      take_tensor();
      reader.int_list();
      event->number = reader.word();
      event->detail = reader.word();
      return true;
    case Kind::kPythonKernel: event->detail = name_hash(reader.string()); return true;
    case Kind::kReplay:
      event->amounts[0] = reader.word();
      event->amounts[1] = reader.word();
      return true;
    case Kind::kGet:
    case Kind::kDescribe:
    case Kind::kSync: return true;
    default: return false;
  }
}

}  // namespace dtorch
