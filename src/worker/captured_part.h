// A part of a plan that the device holds as a graph: what is known of it.
//
// It is found by part_finder.h, made a graph by part_capture.h, and run by captured.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dtorch {

// A record of a plan as it runs. region: 0 for one of the program's own, else 1 and more.
struct Place {
  uint32_t region, record;
};

// A graph that the device holds.
struct DeviceGraph {
  std::shared_ptr<void> keep;
  void (*replay)(void* graph) = nullptr;
  void* graph = nullptr;
};

// How graphs are made: PyTorch's own, by way of Python (dtorch_mpi/device_graphs.py).
struct GraphMaker {
  // Both on the stream that is captured. What end() raises leaves nothing of the capture.
  std::function<void()> begin;
  std::function<DeviceGraph()> end;
};

struct CapturedPart {
  enum class State : uint8_t { kUntried, kCaptured, kRefused };
  struct Input {
    uint32_t tensor;
    bool is_read;             // by an operator; others are only freed or moved
    const void* data = nullptr;
    at::Tensor like;          // without memory
    bool moves = false;       // it was somewhere else in another run
    bool is_written = false;
    at::Tensor own;           // where it is copied to before each run, if it is, and from, if it is written
    size_t alias = 0;         // the first input of the same memory
    bool is_shown = false;    // there are outputs in its memory
  };
  struct Output {
    uint32_t tensor, sharding;
    uint64_t maker;           // counted from the part's beginning
    size_t source;            // of `made`, or of the inputs
    bool shows_input;
    int64_t offset;           // of the source, in bytes
    at::Tensor like;          // without memory
  };

  Place first;
  uint32_t last;              // of the same kind as `first` has
  std::vector<Place> places;  // of all its records
  State state = State::kUntried;
  uint32_t looks = 0;         // at its inputs, before it is captured
  uint32_t tries = 0;         // at capturing it
  uint32_t num_operators = 0;
  std::vector<Input> inputs;
  std::vector<uint32_t> freed;     // of the inputs
  std::vector<at::Tensor> made;    // memory that outlives the part, as bytes
  std::vector<Output> outputs;
  DeviceGraph graph;

  void forget_graph() {
    graph = {};
    made.clear();
    outputs.clear();
    for (auto& input : inputs) input.own = at::Tensor();
  }
};

}  // namespace dtorch
