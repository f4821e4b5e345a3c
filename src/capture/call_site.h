// Where in the user's program an operator was issued.
//
// Reads the interpreter's own frames, without the GIL and without creating a frame object:
// they belong to this thread, which is inside a call and can't change them. Private CPython
// layout, hence one file; tested with 3.11, 3.12 and 3.13.
#pragma once

#include <cstdint>
#include <string>

namespace dtorch {

// The innermost frame that is neither PyTorch's, Python's own nor ours.
struct RawSite {
  const void* code = nullptr;
  const void* instruction = nullptr;
};

// Known sites by number; 0 is "unknown".
// Returns the number, or -1 when the frame was never seen: then call define_site, which
// takes the GIL.
int64_t find_site(RawSite* raw);
uint32_t define_site(const RawSite& raw);
// "file:line in function", as defined.
std::string site_text(uint32_t site);
// Files under these folders are never the user's.
void add_library_folder(const std::string& folder);

}  // namespace dtorch
