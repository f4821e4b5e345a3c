#include "collectives/checked_backend.h"

#include "collectives/arguments.h"

namespace dtorch {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

CheckedBackend::CheckedBackend(const char* name, int rank, int size, c10::Device device)
    : Backend(rank, size), name_(name), device_(device) {}

Request CheckedBackend::request(Kind kind, OpType op_type, const char* collective,
                                std::chrono::milliseconds timeout) const {
  return Request({name_, collective, rank_, size_, device_}, kind, op_type,
                 timeout == c10d::kUnsetTimeout || timeout == kNoTimeout ? timeout_ : timeout);
}

WorkPtr CheckedBackend::launch(Request&& request) {
  request.separate();
  return start(std::move(request));
}

WorkPtr CheckedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Request r = request(Kind::all_reduce, OpType::ALLREDUCE, "allreduce", opts.timeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  r.reduce = opts.reduceOp;
  check_reducible(r.caller, r.reduce, tensor.scalar_type());
  r.updates(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::allreduce_coalesced(Tensors& tensors,
                                            const c10d::AllreduceCoalescedOptions& opts) {
  Request r = request(Kind::all_reduce, OpType::ALLREDUCE_COALESCED, "allreduce_coalesced",
                      opts.timeout);
  check_tensors(r.caller, tensors, "tensors");
  r.reduce = opts.reduceOp;
  check_reducible(r.caller, r.reduce, tensors[0].scalar_type());
  for (const at::Tensor& tensor : tensors) r.updates(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Request r = request(Kind::broadcast, OpType::BROADCAST, "broadcast", opts.timeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  check_member(r.caller, opts.rootRank, "root rank");
  r.peer = static_cast<int>(opts.rootRank);
  r.updates(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Request r = request(Kind::reduce, OpType::REDUCE, "reduce", opts.timeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  check_member(r.caller, opts.rootRank, "root rank");
  r.peer = static_cast<int>(opts.rootRank);
  r.reduce = opts.reduceOp;
  check_reducible(r.caller, r.reduce, tensor.scalar_type());
  r.updates(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) {
  Request r = request(Kind::all_gather, OpType::ALLGATHER, "allgather", opts.timeout);
  const at::Tensor& input = only_tensor(r.caller, inputs, "input");
  const Tensors& parts = one_for_each_member(r.caller, outputs, "output");
  check_same_dtype(r.caller, parts[0], input);
  check_same_shape(r.caller, input, "input", parts[rank_], "this member's output");
  r.reads(input);
  for (const at::Tensor& part : parts) r.writes(part);
  return launch(std::move(r));
}

WorkPtr CheckedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& opts) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr CheckedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& opts) {
  Request r = request(Kind::all_gather, OpType::_ALLGATHER_BASE, "allgather_into_tensor",
                      opts.timeout);
  check_tensors(r.caller, inputs, "input");
  check_tensors(r.caller, outputs, "output");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), r.caller.text(), "got ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs, expected as many");
  check_same_dtype(r.caller, outputs[0], inputs[0]);
  r.even = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(r.caller, outputs[i], "output", inputs[i], "input");
    r.reads(inputs[i]);
    r.writes(outputs[i], size_);
  }
  return launch(std::move(r));
}

WorkPtr CheckedBackend::gather(TensorLists& outputs, Tensors& inputs,
                               const c10d::GatherOptions& opts) {
  Request r = request(Kind::gather, OpType::GATHER, "gather", opts.timeout);
  check_member(r.caller, opts.rootRank, "root rank");
  const at::Tensor& input = only_tensor(r.caller, inputs, "input");
  r.peer = static_cast<int>(opts.rootRank);
  r.even = true;
  r.reads(input);
  if (rank_ == opts.rootRank) {
    const Tensors& parts = one_for_each_member(r.caller, outputs, "output");
    check_same_dtype(r.caller, parts[0], input);
    for (const at::Tensor& part : parts) {
      check_same_shape(r.caller, part, "an output", input, "input");
      r.writes(part);
    }
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), r.caller.text(), "got ", outputs.size(),
                      " output lists, expected none on a member that is not the root");
  }
  return launch(std::move(r));
}

WorkPtr CheckedBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                const c10d::ScatterOptions& opts) {
  Request r = request(Kind::scatter, OpType::SCATTER, "scatter", opts.timeout);
  check_member(r.caller, opts.rootRank, "root rank");
  const at::Tensor& output = only_tensor(r.caller, outputs, "output");
  r.peer = static_cast<int>(opts.rootRank);
  r.even = true;
  r.writes(output);
  if (rank_ == opts.rootRank) {
    const Tensors& parts = one_for_each_member(r.caller, inputs, "input");
    check_same_dtype(r.caller, output, parts[0]);
    for (const at::Tensor& part : parts) {
      check_same_shape(r.caller, part, "an input", output, "output");
      r.reads(part);
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), r.caller.text(), "got ", inputs.size(),
                      " input lists, expected none on a member that is not the root");
  }
  return launch(std::move(r));
}

WorkPtr CheckedBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                       const c10d::ReduceScatterOptions& opts) {
  Request r = request(Kind::reduce_scatter, OpType::REDUCE_SCATTER, "reduce_scatter",
                      opts.timeout);
  const at::Tensor& output = only_tensor(r.caller, outputs, "output");
  const Tensors& parts = one_for_each_member(r.caller, inputs, "input");
  check_same_dtype(r.caller, output, parts[0]);
  check_same_shape(r.caller, output, "output", parts[rank_], "this member's input");
  r.reduce = opts.reduceOp;
  check_reducible(r.caller, r.reduce, output.scalar_type());
  r.writes(output);
  for (const at::Tensor& part : parts) r.reads(part);
  return launch(std::move(r));
}

WorkPtr CheckedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& opts) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr CheckedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& opts) {
  Request r = request(Kind::reduce_scatter, OpType::_REDUCE_SCATTER_BASE,
                      "reduce_scatter_tensor", opts.timeout);
  check_tensors(r.caller, inputs, "input");
  check_tensors(r.caller, outputs, "output");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), r.caller.text(), "got ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs, expected as many");
  check_same_dtype(r.caller, outputs[0], inputs[0]);
  r.reduce = opts.reduceOp;
  check_reducible(r.caller, r.reduce, outputs[0].scalar_type());
  r.even = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(r.caller, inputs[i], "input", outputs[i], "output");
    r.reads(inputs[i], size_);
    r.writes(outputs[i]);
  }
  return launch(std::move(r));
}

WorkPtr CheckedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                      std::vector<int64_t>& output_split_sizes,
                                      std::vector<int64_t>& input_split_sizes,
                                      const c10d::AllToAllOptions& opts) {
  Request r = request(Kind::all_to_all, OpType::ALLTOALL_BASE, "alltoall_base", opts.timeout);
  check_tensor(r.caller, input, "input");
  check_tensor(r.caller, output, "output");
  check_same_dtype(r.caller, output, input);
  const auto from = split_counts(r.caller, input, input_split_sizes, "input");
  const auto to = split_counts(r.caller, output, output_split_sizes, "output");
  r.even = input_split_sizes.empty() && output_split_sizes.empty();
  TORCH_CHECK_VALUE(from[rank_] == to[rank_], r.caller.text(), "this member sends itself ",
                    from[rank_], " elements but expects ", to[rank_]);
  r.reads_split(input, from);
  r.writes_split(output, to);
  return launch(std::move(r));
}

WorkPtr CheckedBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                 const c10d::AllToAllOptions& opts) {
  Request r = request(Kind::all_to_all, OpType::ALLTOALL, "alltoall", opts.timeout);
  const TensorLists output_lists = {outputs};
  const TensorLists input_lists = {inputs};
  const Tensors& to = one_for_each_member(r.caller, output_lists, "output");
  const Tensors& from = one_for_each_member(r.caller, input_lists, "input");
  check_same_dtype(r.caller, to[0], from[0]);
  check_same_shape(r.caller, to[rank_], "this member's output", from[rank_],
                   "this member's input");
  for (const at::Tensor& tensor : from) r.reads(tensor);
  for (const at::Tensor& tensor : to) r.writes(tensor);
  return launch(std::move(r));
}

WorkPtr CheckedBackend::send(Tensors& tensors, int destination, int tag) {
  Request r = request(Kind::send, OpType::SEND, "send", c10d::kUnsetTimeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  check_member(r.caller, destination, "destination");
  TORCH_CHECK_VALUE(tag >= 0, r.caller.text(), "tag is ", tag, ", expected 0 or more");
  r.peer = destination;
  r.tag = tag;
  r.reads(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::recv(Tensors& tensors, int source, int tag) {
  Request r = request(Kind::recv, OpType::RECV, "recv", c10d::kUnsetTimeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  check_member(r.caller, source, "source");
  TORCH_CHECK_VALUE(tag >= 0, r.caller.text(), "tag is ", tag, ", expected 0 or more");
  r.peer = source;
  r.tag = tag;
  r.writes(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::recvAnysource(Tensors& tensors, int tag) {
  Request r = request(Kind::recv, OpType::RECVANYSOURCE, "recv_anysource", c10d::kUnsetTimeout);
  const at::Tensor& tensor = only_tensor(r.caller, tensors, "tensors");
  TORCH_CHECK_VALUE(tag >= 0, r.caller.text(), "tag is ", tag, ", expected 0 or more");
  r.peer = kAnySource;
  r.tag = tag;
  r.writes(tensor);
  return start(std::move(r));
}

WorkPtr CheckedBackend::barrier(const c10d::BarrierOptions& opts) {
  return start(request(Kind::barrier, OpType::BARRIER, "barrier", opts.timeout));
}

}  // namespace dtorch
