// PyTorch's random operators under a namespace of our own: a worker that is told to run
// aten::uniform_ runs dtorch::uniform_ (see define_operator in worker/call.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace dtorch {

// Defines dtorch::`name` with the schema of aten::`name`. `function` makes its numbers on the
// host; for a worker on a GPU it copies them there.
template <class Function>
void adopt(torch::Library& library, const std::string& name, Function* function) {
  const size_t dot = name.find('.');
  const std::string base = name.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto& known = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + base).c_str(), overload.c_str());
  library.def(known.schema().cloneWithName("dtorch::" + base, overload),
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
}

}  // namespace dtorch
