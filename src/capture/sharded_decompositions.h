#pragma once

#include <string>

#include "capture/call_entry.h"

namespace dtorch {

// Boxed: replaces an operator's arguments on the stack by its results, by calling operators
// that shards can carry. `name` is the operator's; asserts that there is one.
using Decomposition = void (*)(Stack* stack);
Decomposition sharded_decomposition(const std::string& name);

}  // namespace dtorch
