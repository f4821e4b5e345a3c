// Graphs of the device as Python makes them: PyTorch has its own for that, and no C++ interface that compiles
// without CUDA's headers. Only what runs again and again goes without Python: the replay.
#pragma once

#include <memory>

#include <torch/csrc/utils/pybind.h>

#include "worker/captured_part.h"

namespace dtorch {

// captures: with begin(), and end(), which returns (graph, address of a function, address of what it takes).
inline std::shared_ptr<GraphMaker> python_graph_maker(PyObject* captures) {
  const auto hold = [](pybind11::object object) {
    return std::shared_ptr<pybind11::object>(new pybind11::object(std::move(object)), [](pybind11::object* held) {
      const pybind11::gil_scoped_acquire gil;
      delete held;
    });
  };
  const auto held = hold(pybind11::reinterpret_borrow<pybind11::object>(captures));
  auto maker = std::make_shared<GraphMaker>();
  maker->begin = [held] {
    const pybind11::gil_scoped_acquire gil;
    held->attr("begin")();
  };
  maker->end = [held, hold] {
    const pybind11::gil_scoped_acquire gil;
    const auto made = held->attr("end")().cast<pybind11::tuple>();
    DeviceGraph graph;
    graph.keep = hold(made[0]);
    graph.replay = reinterpret_cast<void (*)(void*)>(made[1].cast<uintptr_t>());
    graph.graph = reinterpret_cast<void*>(made[2].cast<uintptr_t>());
    return graph;
  };
  return maker;
}

// The C++ object in a Python object of a class that pybind11 has made.
inline uintptr_t address_in(PyObject* object) {
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(object);
  return reinterpret_cast<uintptr_t>(instance->get_value_and_holder().value_ptr());
}

}  // namespace dtorch
