// Records that no operator call makes: data in, values out, definitions.
#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "capture/between_graphs.h"
#include "capture/call_site.h"
#include "capture/capture.h"
#include "capture/definitions.h"
#include "capture/python_hooks.h"
#include "profiling/client.h"

namespace dtorch {
namespace {

constexpr int64_t kInlineBytes = 1024;

// Issues one record. input: a tensor that it uses, whose slot `write` is given.
template <class Write>
void emit(RecordQueue& queue, const at::Tensor* input, size_t words, Write&& write) {
  if (C10_UNLIKELY(client_timeline.is_on())) begin_issue();
  uint32_t site = current_site();
  auto& between_graphs = BetweenGraphs::get();
  std::lock_guard<SpinLock> guard(queue.lock);
  site = site_on_workers(site);
  Definitions::get().bring(queue);
  uint32_t slot = kNoSlot;
  if (input) {
    check_alive(slot_of(*input));
    slot = between_graphs.is_active() ? between_graphs.use(queue, slot_of(*input), false) : slot_of(*input).id;
  }
  Writer writer = queue.reserve(words);
  write(writer, queue, site, slot);
  queue.commit(writer.end());
  if (between_graphs.is_active()) between_graphs.note(queue);
}

template <class Write>
void emit(size_t words, Write&& write) {
  emit(RecordQueue::current(), nullptr, words,
       [&](Writer& writer, RecordQueue& queue, uint32_t site, uint32_t) { write(writer, queue, site); });
}

template <class Write>
void define(size_t words, Write&& write) {
  uint32_t site = current_site();
  auto& queue = RecordQueue::current();
  auto& definitions = Definitions::get();
  std::lock_guard<SpinLock> guard(queue.lock);
  site = site_on_workers(site);
  definitions.add(words, [&](Writer& writer) { write(writer, site); });
  definitions.bring(queue);
}

void emit_bare(Kind kind) {
  emit(kHeaderWords, [&](Writer& writer, RecordQueue&, uint32_t site) { writer.begin(kind, 0, 0, site); });
}

constexpr int64_t kReplicate = 0, kShard = 1, kPartial = 2;  // as Placement::packed of sharding/placement.h

// What capture asks of a sharding, by its number.
struct ShardingFacts {
  uint32_t mesh = 0;
  std::vector<int64_t> placements;

  bool has(int64_t kind) const {
    return std::any_of(placements.begin(), placements.end(),
                       [&](int64_t packed) { return (packed & 0xff) == kind; });
  }
  // Whether every worker of the mesh has all of the value.
  bool is_whole() const {
    return std::all_of(placements.begin(), placements.end(),
                       [](int64_t packed) { return (packed & 0xff) == kReplicate; });
  }
};

struct KnownShardings {
  SpinLock lock;
  std::vector<ShardingFacts> facts{ShardingFacts()};
};

KnownShardings& known_shardings() {
  static auto* instance = new KnownShardings;
  return *instance;
}

ShardingFacts facts_of(uint32_t sharding) {
  auto& known = known_shardings();
  std::lock_guard<SpinLock> guard(known.lock);
  return known.facts.at(sharding);
}

}  // namespace

at::Tensor upload(const at::Tensor& tensor, uint32_t sharding) {
  check_is_client();
  auto& queue = RecordQueue::current();
  if (!queue.is_open()) start_runtime();
  queue.throttle();
  TORCH_CHECK(tensor.layout() == c10::kStrided, "only strided tensors can live on the dtorch "
              "device; got layout ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.dim() <= kMaxDims, "expected a tensor of ", kMaxDims, " dims at most to "
                    "move to the dtorch device, got ", tensor.dim(), ": flatten some of them first");
  const bool dense = tensor.is_non_overlapping_and_dense();
  const auto source = (dense ? tensor : tensor.contiguous()).resolve_conj().resolve_neg();
  const int64_t bytes = static_cast<int64_t>(source.nbytes());
  const bool small = bytes <= kInlineBytes && sharding == 0;
  uint32_t slot;
  at::Tensor copy;
  // The user may change the tensor as soon as this returns.
  if (!small) copy = source.clone(at::MemoryFormat::Preserve);
  emit(kHeaderWords + 16 + 4 * source.dim() + (small ? bytes / 4 + 2 : 4),
       [&](Writer& writer, RecordQueue& q, uint32_t site) {
    slot = q.take_slot();
    writer.begin(Kind::kUpload, 0, slot, site);
    writer.int_value(static_cast<int64_t>(source.scalar_type()));
    writer.int_list(source.sizes());
    writer.int_list(source.strides());
    writer.word(sharding);
    if (small) {
      // A dense tensor's elements lie in one run, whatever the order of its strides.
      writer.string({static_cast<const char*>(source.const_data_ptr()), static_cast<size_t>(bytes)});
    } else {
      writer.int_value(static_cast<int64_t>(q.transfers.add(std::move(copy), sharding)));
      q.add_bytes(bytes);
    }
  });
  counters().uploads += 1;
  counters().upload_bytes += bytes;
  return make_tensor(slot, sharding, source.scalar_type(), source.sizes(), source.strides(), 0);
}

size_t redistribute_words(const at::Tensor& tensor) { return kHeaderWords + 10 + 4 * tensor.dim(); }

void write_redistribute(Writer& writer, uint32_t input, uint32_t output, const at::Tensor& tensor,
                        uint32_t from, uint32_t to, bool into, uint32_t site) {
  writer.begin(Kind::kRedistribute, into, input, site);
  writer.tag(Tag::kOutput, output);
  writer.int_value(static_cast<int64_t>(tensor.scalar_type()));
  writer.int_list(tensor.sizes());
  writer.int_list(tensor.strides());
  writer.word(from);
  writer.word(to);
  counters().moves += 1;
}

at::Tensor redistribute(const at::Tensor& tensor, uint32_t from, uint32_t to) {
  auto& queue = RecordQueue::current();
  queue.throttle();
  uint32_t slot;
  emit(queue, &tensor, redistribute_words(tensor),
       [&](Writer& writer, RecordQueue& q, uint32_t site, uint32_t input) {
    slot = q.take_slot();
    write_redistribute(writer, input, slot, tensor, from, to, false, site);
  });
  return make_tensor(slot, to, tensor.scalar_type(), tensor.sizes(), tensor.strides(), 0);
}

void emit_request(Kind kind, uint32_t slot, const PromiseName& promise) {
  check_is_client();
  emit(kHeaderWords + 10, [&](Writer& writer, RecordQueue&, uint32_t site) {
    writer.begin(kind, 0, slot, site);
    writer.promise(promise);
    writer.word(0);
  });
  counters().reads += 1;
}

// In the tensor's own graph, which has it: no other need know it for that.
uint32_t request_value(const at::Tensor& tensor, const PromiseName& promise, uint32_t sharding) {
  check_is_client();
  auto& queue = *slot_of(tensor).home;
  emit(queue, &tensor, kHeaderWords + 10, [&](Writer& writer, RecordQueue&, uint32_t site, uint32_t slot) {
    writer.begin(Kind::kGet, 0, slot, site);
    writer.promise(promise);
    writer.word(sharding);
  });
  counters().reads += 1;
  return queue.graph;
}

std::vector<at::Tensor> call_python_kernel(const std::string& name, const std::string& packed,
                                           const std::vector<TensorMeta>& metas) {
  check_is_client();
  auto& queue = RecordQueue::current();
  if (!queue.is_open()) start_runtime();
  queue.throttle();
  size_t words = kHeaderWords + 8 + (name.size() + packed.size()) / 4;
  for (const auto& meta : metas) words += 8 + 2 * meta.sizes.size();
  std::vector<at::Tensor> outputs;
  std::vector<uint32_t> slots;
  emit(words, [&](Writer& writer, RecordQueue& q, uint32_t site) {
    writer.begin(Kind::kPythonKernel, static_cast<uint32_t>(metas.size()), 0, site);
    writer.string(name);
    writer.string(packed);
    for (const auto& meta : metas) {
      slots.push_back(q.take_slot());
      writer.tag(Tag::kOutput, slots.back());
      writer.int_value(static_cast<int64_t>(meta.dtype));
      writer.int_list(meta.sizes);
      writer.word(meta.sharding);
    }
  });
  for (size_t i = 0; i < metas.size(); ++i) {
    outputs.push_back(make_tensor(slots[i], metas[i].sharding, metas[i].dtype, metas[i].sizes,
                                  metas[i].strides, 0));
  }
  return outputs;
}

void define_mesh(uint32_t number, c10::IntArrayRef shape, c10::IntArrayRef workers) {
  define(kHeaderWords + 2 + 2 * (shape.size() + workers.size()), [&](Writer& writer, uint32_t site) {
    writer.begin(Kind::kDefineMesh, 0, number, site);
    writer.int_list(shape);
    writer.int_list(workers);
  });
}

bool sharding_is_splitting(uint32_t sharding) { return !facts_of(sharding).has(kPartial); }

bool only_reduces(uint32_t from, uint32_t to) {
  const auto before = facts_of(from).placements, after = facts_of(to).placements;
  if (before.empty()) return false;  // on no mesh: nothing to reduce
  for (size_t axis = 0; axis < before.size(); ++axis) {
    if (before[axis] != after[axis] && (before[axis] & 0xff) != kPartial) return false;
  }
  return true;
}

bool sharding_is_whole(uint32_t sharding) { return facts_of(sharding).is_whole(); }

bool sharding_fits(uint32_t sharding, int64_t num_dims) {
  const auto placements = facts_of(sharding).placements;
  return std::all_of(placements.begin(), placements.end(), [&](int64_t packed) {
    return (packed & 0xff) != kShard || (packed >> 16) < num_dims;
  });
}

uint32_t whole_sharding(uint32_t sharding) {
  auto& known = known_shardings();
  std::lock_guard<SpinLock> guard(known.lock);
  const auto& facts = known.facts;
  for (uint32_t number = 1; number < facts.size(); ++number) {
    if (facts[number].mesh == facts.at(sharding).mesh && facts[number].is_whole()) return number;
  }
  TORCH_INTERNAL_ASSERT(false, "a mesh without a replicated sharding");
}

void define_sharding(uint32_t number, uint32_t mesh, c10::IntArrayRef placements) {
  {
    // Numbers begin anew with each set of workers.
    auto& known = known_shardings();
    std::lock_guard<SpinLock> guard(known.lock);
    known.facts.resize(number);
    known.facts.push_back({mesh, {placements.begin(), placements.end()}});
  }
  define(kHeaderWords + 2 + 2 * placements.size(), [&](Writer& writer, uint32_t site) {
    writer.begin(Kind::kDefineSharding, 0, number, site);
    writer.word(mesh);
    writer.int_list(placements);
  });
}

void emit_mark() { emit_bare(Kind::kMark); }

void emit_shutdown() { emit_bare(Kind::kShutdown); }

}  // namespace dtorch
