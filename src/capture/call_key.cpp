#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>

#include "capture/call_entry.h"
#include "capture/call_words.h"
#include "wire/record.h"

namespace dtorch {
void CallKey::add_tensor(const at::Tensor& tensor, const OperatorInfo& info) {
  if (!tensor.defined()) {
    words.push_back(mark(Mark::kNone, 1));
    record_words += 1;
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  uint64_t word = static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.dim()) << 8;
  if (impl->device_type() == kDeviceType) {
    const auto& slot = slot_of(tensor);
    sharded = sharded || slot.sharding != 0;
    word |= static_cast<uint64_t>(slot.sharding) << 32;
    if (C10_UNLIKELY(tensor.is_conj())) word |= kConjugateBit;
    if (C10_UNLIKELY(tensor.is_neg())) word |= kNegativeBit;
    words.push_back(word);
    const auto sizes = impl->sizes(), strides = impl->strides();
    words.append(sizes.begin(), sizes.end());
    words.append(strides.begin(), strides.end());
    inputs.push_back(&tensor);
    record_words += 1;
    return;
  }
  TORCH_CHECK(impl->device_type() == c10::DeviceType::CPU && tensor.dim() == 0,
              "Expected all tensors to be on the same device, but found at least two devices, "
              "dtorch:0 and ", tensor.device(), "! (when calling ", info.name,
              "; move the tensor with .to('dtorch'))");
  words.push_back(word | kHostBit | (impl->is_wrapped_number() ? kWrappedBit : 0));
  record_words += 6;
}

void CallKey::add_value(const c10::IValue& value) {
  if (value.isNone()) {
    words.push_back(mark(Mark::kNone));
    record_words += 1;
  } else if (value.isInt()) {
    words.push_back(mark(Mark::kInt));
    words.push_back(static_cast<uint64_t>(value.toInt()));
    record_words += 3;
  } else if (value.isBool()) {
    words.push_back(mark(Mark::kBool, value.toBool()));
    record_words += 1;
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    words.push_back(mark(Mark::kDouble));
    words.push_back(c10::bit_cast<uint64_t>(number));
    record_words += 3;
  } else if (value.isIntList()) {
    const auto list = value.toIntList();
    words.push_back(mark(Mark::kInts, list.size()));
    for (int64_t element : list) words.push_back(static_cast<uint64_t>(element));
    record_words += 2 + 2 * list.size();
  } else if (value.isDoubleList()) {
    const auto list = value.toDoubleList();
    words.push_back(mark(Mark::kDoubles, list.size()));
    for (double element : list) words.push_back(c10::bit_cast<uint64_t>(element));
    record_words += 1 + 2 * list.size();
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    words.push_back(mark(Mark::kBools, list.size()));
    for (bool element : list) words.push_back(element);
    record_words += 1 + list.size();
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    words.push_back(mark(Mark::kText, std::hash<std::string>()(text) >> 8));
    words.push_back(text.size());
    record_words += 2 + text.size() / 4;
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    words.push_back(mark(Mark::kComplex));
    words.push_back(c10::bit_cast<uint64_t>(number.real()));
    words.push_back(c10::bit_cast<uint64_t>(number.imag()));
    record_words += 5;
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "dtorch cannot send an argument of type ", value.tagKind());
  }
}

std::pair<size_t, size_t> CallKey::add_positions(const OperatorInfo& info,
                                                 const c10::IValue* arguments) {
  constexpr std::pair<size_t, size_t> kNothing{0, 0};
  const bool backward = info.positions == Positions::kSelectBackward ||
                        info.positions == Positions::kSliceBackward;
  const bool slice = info.positions == Positions::kSlice || info.positions == Positions::kSliceBackward;
  const auto& self = arguments[0].toTensor();
  const auto sizes = backward ? arguments[1].toIntVector() : self.sizes().vec();
  const size_t at = backward ? 2 : 1;  // of the dim; the positions follow
  const auto ndim = static_cast<int64_t>(sizes.size());
  int64_t dim = arguments[at].toInt();
  if (dim < -ndim || dim >= ndim) return kNothing;
  if (dim < 0) dim += ndim;
  const int64_t size = sizes[dim];
  int64_t first = 0, extent = 1;
  if (slice) {
    const int64_t step = arguments[at + 3].toInt();
    if (step <= 0) return kNothing;
    first = arguments[at + 1].isNone() ? 0 : arguments[at + 1].toInt();
    int64_t end = arguments[at + 2].isNone() ? size : arguments[at + 2].toInt();
    if (first < 0) first += size;
    if (end < 0) end += size;
    first = std::clamp<int64_t>(first, 0, size);
    end = std::clamp<int64_t>(end, first, size);
    extent = end - first;
  } else {
    first = arguments[at + 1].toInt();
    if (first < -size || first >= size) return kNothing;
    if (first < 0) first += size;
  }
  if (!backward) position = first * self.stride(dim);
  words.push_back(mark(Mark::kExtent, static_cast<uint64_t>(extent)));
  record_words += 6;
  return {at + 1, at + (slice ? 3 : 2)};
}

CallKey::CallKey(const OperatorInfo& info, const c10::IValue* arguments) {
  words.push_back(reinterpret_cast<uintptr_t>(&info));
  words.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  if (C10_UNLIKELY(info.positions != Positions::kNone)) left_out = add_positions(info, arguments);
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    const auto& value = arguments[a];
    if (C10_UNLIKELY(a >= left_out.first && a < left_out.second)) continue;
    switch (info.arguments[a].kind) {
      case ArgumentKind::kTensor:
        if (value.isTensor()) {
          add_tensor(value.toTensor(), info);
        } else {
          add_value(value);
        }
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kOptionalTensorList:
        if (value.isNone()) {
          add_value(value);
          break;
        }
        {
          // Through the list's own storage: the tensors must outlive this call.
          const auto elements = value.toListRef();
          words.push_back(mark(Mark::kTensors, elements.size()));
          record_words += 1;
          for (const auto& element : elements) {
            if (element.isTensor()) {
              add_tensor(element.toTensor(), info);
            } else {
              words.push_back(mark(Mark::kNone));
              record_words += 1;
            }
          }
        }
        break;
      case ArgumentKind::kShaping: add_value(value); break;
      case ArgumentKind::kScalar:
        // Its type alone: a learning rate must not miss the cache at every step.
        words.push_back(mark(Mark::kOther, value.isNone()       ? 0
                                     : value.isInt()      ? 1
                                     : value.isDouble()   ? 2
                                     : value.isBool()     ? 3
                                                          : 4));
        record_words += 5;
        break;
      case ArgumentKind::kScalarList: {
        const auto elements = value.toListRef();
        words.push_back(mark(Mark::kScalars, elements.size()));
        for (const auto& element : elements) {
          words.push_back(element.isInt() ? 1 : element.isDouble() ? 2 : element.isBool() ? 3 : 4);
        }
        record_words += 1 + 5 * elements.size();
        break;
      }
      case ArgumentKind::kDevice: {
        const bool host = !value.isNone() && value.toDevice().type() != kDeviceType;
        if (!host && !value.isNone()) check_device(value.toDevice());
        words.push_back(mark(host ? Mark::kHost : Mark::kAnyDevice, value.isNone()));
        record_words += 1;
        break;
      }
      case ArgumentKind::kGenerator: record_words += 5; break;
    }
  }
}

uint64_t CallKey::hash() const { return hash_of(words); }

}  // namespace dtorch
