// PyTorch's operators under a namespace of our own, with kernels of our own. A worker that is told to
// run aten::uniform_ runs dtorch::uniform_, as any operator of which there is one of the same name
// (own_random_operator in capture/operator_info.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace dtorch {

// Defines dtorch::`own` with the schema of aten::`name`.
template <class Function>
void adopt_as(torch::Library& library, const std::string& own, const std::string& name, Function* function) {
  const size_t dot = name.find('.');
  const std::string base = name.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto& known = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + base).c_str(), overload.c_str());
  library.def(known.schema().cloneWithName("dtorch::" + own, overload),
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
}

// Defines dtorch::`name`, which workers so run in the place of aten::`name`. `function` makes its
// numbers on the host; for a worker on a GPU it copies them there.
template <class Function>
void adopt(torch::Library& library, const std::string& name, Function* function) {
  adopt_as(library, name.substr(0, name.find('.')), name, function);
}

}  // namespace dtorch
