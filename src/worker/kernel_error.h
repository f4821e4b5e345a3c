// An exception in a Python kernel, in words.
#pragma once

#include <string>

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

namespace dtorch {

// Type, text and the kernel's own line. Takes the GIL.
inline std::string kernel_error(PyObject* type, PyObject* value, PyObject* traceback,
                                const std::string& otherwise) {
  pybind11::gil_scoped_acquire gil;
  try {
    const auto or_none = [](PyObject* object) {
      return object == nullptr ? pybind11::none() : pybind11::reinterpret_borrow<pybind11::object>(object);
    };
    return pybind11::module_::import("dtorch_mpi.kernels.failures")
        .attr("describe")(or_none(type), or_none(value), or_none(traceback))
        .cast<std::string>();
  } catch (const std::exception&) {
    return otherwise;
  }
}

inline bool is_python_error(const std::exception& error, std::string* text) {
  if (const auto* raised = dynamic_cast<const pybind11::error_already_set*>(&error)) {
    // what() asks for the exception's text with the GIL held by itself.
    *text = kernel_error(raised->type().ptr(), raised->value().ptr(), raised->trace().ptr(), raised->what());
    return true;
  }
  if (const auto* raised = dynamic_cast<const python_error*>(&error)) {
    *text = kernel_error(raised->type, raised->value, raised->traceback, raised->what());
    return true;
  }
  return false;
}

}  // namespace dtorch
