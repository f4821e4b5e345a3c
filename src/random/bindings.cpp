// Python's view of the room, for tests.
#include <torch/csrc/utils/pybind.h>

#include "random/philox.h"

PYBIND11_MODULE(_random, module) {
  module.doc() = "Random numbers by place: importing it registers the workers' random operators.";
  module.def("philox", &dtorch::philox, "The block at a counter (4 words) under a key (2 words).");
}
