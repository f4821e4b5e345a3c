#include "capture/operator_info.h"

#include <memory>
#include <unordered_map>

namespace dtorch {
namespace {

// Meta kernels that give another shape, stride or dtype than the CPU's kernel, or that do
// not exist for an argument the CPU takes (found by running both; torch 2.13).
constexpr std::string_view kMeasured[] = {
    "aten::native_batch_norm", "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_with_update",
    "aten::_batch_norm_no_update", "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only", "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c",
    "aten::_linalg_svd", "aten::linalg_eig", "aten::_linalg_eigh", "aten::linalg_qr",
    "aten::linalg_lstsq", "aten::geqrf", "aten::_ctc_loss", "aten::_ctc_loss_backward",
    "aten::histogram", "aten::_histogramdd_from_bin_cts",
};

// Schemas that do not tell that the output shares the input's memory.
constexpr std::string_view kSilentViews[] = {"aten::_unsafe_view", "aten::lift_fresh",
                                             "aten::lift"};

// Scalars that shape the output, or decide how the values of shards are put together, so that
// their value belongs to the key.
constexpr std::string_view kShapedByScalars[] = {
    "aten::arange", "aten::range", "aten::linspace", "aten::logspace", "aten::bucketize",
    "aten::linalg_vector_norm", "aten::linalg__powsum", "aten::_foreach_norm", "aten::norm"};

constexpr std::string_view kHostIndices[] = {"aten::index", "aten::index_put", "aten::index_put_",
                                             "aten::_index_put_impl_", "aten::_unsafe_index",
                                             "aten::_unsafe_index_put"};

// Of torch 2.13, with what torch.distributed brings, and ours.
constexpr std::string_view kOwnNamespaces[] = {
    "aten", "prim", "prims", "rngprims", "debugprims", "dtorch", "profiler", "inductor",
    "inductor_prims", "_inductor_test", "quantized", "_quantized", "quantization",
    "quantized_decomposed", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic",
    "xnnpack", "prepacked", "sparse", "static_runtime", "streams", "symm_mem", "c10d",
    "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "export",
    "flex_lib", "higher_order", "cuda", "debug_mode_ops", "_native", "_test", "_caffe2"};

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  for (auto candidate : names) {
    if (candidate == name) return true;
  }
  return false;
}

ArgumentKind kind_of(const c10::TypePtr& type, bool scalars_shape) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(type->castRaw<c10::OptionalType>()->getElementType(), scalars_shape);
    case c10::TypeKind::TensorType: return ArgumentKind::kTensor;
    case c10::TypeKind::DeviceObjType: return ArgumentKind::kDevice;
    case c10::TypeKind::GeneratorType: return ArgumentKind::kGenerator;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return scalars_shape ? ArgumentKind::kShaping : ArgumentKind::kScalar;
    case c10::TypeKind::ListType: {
      const auto& element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensorList;
      if (element->kind() == c10::TypeKind::NumberType) return ArgumentKind::kScalarList;
      if (element->kind() == c10::TypeKind::OptionalType) return ArgumentKind::kOptionalTensorList;
      return ArgumentKind::kShaping;
    }
    default: return ArgumentKind::kShaping;
  }
}

// What the schema types as a size; and the ends of an arange, which it types as any number.
bool is_size(const c10::TypePtr& type, std::string_view name) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return is_size(type->castRaw<c10::OptionalType>()->getElementType(), name);
    case c10::TypeKind::ListType:
      return type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::SymIntType;
    case c10::TypeKind::SymIntType: return true;
    case c10::TypeKind::NumberType: return name == "aten::arange";
    default: return false;
  }
}

}  // namespace

bool is_users_operator(std::string_view name) {
  return !contains(kOwnNamespaces, name.substr(0, name.find("::")));
}

std::optional<c10::OperatorHandle> own_random_operator(const c10::OperatorName& name) {
  constexpr std::string_view kAten = "aten::";
  if (!name.name.starts_with(kAten)) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema(
      {"dtorch::" + name.name.substr(kAten.size()), name.overload_name});
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle, uint32_t number)
    : handle(handle), number(number) {
  const auto& schema = handle.schema();
  name = schema.name();
  overload = schema.overload_name();
  is_users = is_users_operator(name);
  const bool scalars_shape = contains(kShapedByScalars, name);
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const auto kind = kind_of(argument.real_type(), scalars_shape);
    if (kind == ArgumentKind::kGenerator) generator_argument = static_cast<int16_t>(arguments.size());
    arguments.push_back({kind, written, is_size(argument.real_type(), name)});
    writes = writes || written;
  }
  for (const auto& value : schema.returns()) {
    ReturnInfo info;
    info.is_tensor = value.type()->kind() == c10::TypeKind::TensorType;
    info.is_list = value.type()->kind() == c10::TypeKind::ListType;
    const auto* alias = value.alias_info();
    // Of a list, what its elements share.
    if (alias != nullptr && !alias->containedTypes().empty()) alias = &alias->containedTypes()[0];
    if (alias != nullptr) {
      for (size_t a = 0; a < arguments.size(); ++a) {
        const auto* other = schema.arguments()[a].alias_info();
        if (other == nullptr || other->beforeSets() != alias->beforeSets()) continue;
        if (alias->isWrite()) {
          info.written_argument = static_cast<int16_t>(a);
        } else {
          info.viewed_argument = static_cast<int16_t>(a);
        }
        break;
      }
    }
    if (info.viewed_argument < 0 && contains(kSilentViews, name)) info.viewed_argument = 0;
    views = views || info.viewed_argument >= 0;
    returns.push_back(info);
  }
  if (handle.hasTag(at::Tag::dynamic_output_shape)) {
    meta_rule = MetaRule::kDynamic;
  } else if (contains(kMeasured, name)) {
    meta_rule = MetaRule::kMeasured;
  }
  if (name == "aten::select" && overload == "int") positions = Positions::kSelect;
  if (name == "aten::slice" && overload == "Tensor") positions = Positions::kSlice;
  if (name == "aten::select_backward" && overload.empty()) positions = Positions::kSelectBackward;
  if (name == "aten::slice_backward" && overload.empty()) positions = Positions::kSliceBackward;
  if (const auto random = own_random_operator(handle.operator_name())) {
    adds_generator = random->schema().arguments().size() == arguments.size() + 1;
    fills_randomly = writes && generator_argument >= 0 && arguments[0].written;
    for (size_t a = 1; a < arguments.size(); ++a) {
      if (arguments[a].kind == ArgumentKind::kTensor) fills_randomly = false;
    }
  }
  // The bounds of random integers do not shape the output.
  for (auto& argument : arguments) {
    if (fills_randomly && argument.kind == ArgumentKind::kShaping) argument.kind = ArgumentKind::kScalar;
  }
  writes_list = writes && name.starts_with("aten::_foreach_");
  takes_host_indices = contains(kHostIndices, name);
  absolute_offset = name == "aten::as_strided";
}

namespace {

struct KnownOperators {
  struct Recent {
    const c10::FunctionSchema* schema = nullptr;
    OperatorInfo* info = nullptr;
  };
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> by_schema;
  Recent recent[512];
  uint32_t next_number = 0;
};

KnownOperators& known_operators() {
  static auto* instance = new KnownOperators;
  return *instance;
}

}  // namespace

OperatorInfo& operator_info(const c10::OperatorHandle& handle) {
  static KnownOperators& known = known_operators();
  const auto* schema = &handle.schema();
  auto& slot = known.recent[(reinterpret_cast<uintptr_t>(schema) >> 5) % std::size(known.recent)];
  if (slot.schema == schema) return *slot.info;
  auto& entry = known.by_schema[schema];
  if (!entry) entry = std::make_unique<OperatorInfo>(handle, known.next_number++);
  slot = {schema, entry.get()};
  return *entry;
}

bool forget_operator(std::string_view name, std::string_view overload) {
  auto& known = known_operators();
  bool found = false;
  for (auto it = known.by_schema.begin(); it != known.by_schema.end();) {
    if (it->second->name != name || it->second->overload != overload) {
      ++it;
      continue;
    }
    for (auto& slot : known.recent) {
      if (slot.info == it->second.get()) slot = {};
    }
    // Never freed: its address stands in keys, where no other operator's may come in its place.
    it->second.release();
    it = known.by_schema.erase(it);
    found = true;
  }
  return found;
}

}  // namespace dtorch
