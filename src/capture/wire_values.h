// Arguments of a call as values of a record.
#pragma once

#include <ATen/core/ivalue.h>

#include "capture/call_entry.h"
#include "tensor/generator.h"
#include "tensor/slot.h"
#include "wire/writer.h"

namespace dtorch {

inline void write_scalar(Writer& writer, const c10::Scalar& scalar) {
  if (scalar.isBoolean()) {
    writer.bool_value(scalar.toBool());
  } else if (scalar.isIntegral(false)) {
    writer.int_value(scalar.toLong());
  } else if (scalar.isFloatingPoint()) {
    writer.double_value(scalar.toDouble());
  } else {
    writer.complex_value(scalar.toComplexDouble());
  }
}

// A 0-dim CPU tensor travels by value; its flag decides type promotion.
inline void write_scalar_tensor(Writer& writer, const at::Tensor& tensor) {
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  writer.tag(Tag::kScalarTensor, static_cast<uint32_t>(tensor.scalar_type()) | wrapped << 8);
  write_scalar(writer, tensor.item());
}

template <class SlotNumbers>
void write_tensor(Writer& writer, const at::Tensor& tensor, const SlotNumbers& inputs, size_t* next) {
  if (!tensor.defined()) {
    writer.tag(Tag::kSlot, kNoSlot);
  } else if (on_workers(tensor)) {
    writer.tag(Tag::kSlot, inputs[(*next)++]);
  } else {
    write_scalar_tensor(writer, tensor);
  }
}

inline void write_plain(Writer& writer, const c10::IValue& value) {
  if (value.isNone()) {
    writer.tag(Tag::kNone);
  } else if (value.isInt()) {
    writer.int_value(value.toInt());
  } else if (value.isBool()) {
    writer.bool_value(value.toBool());
  } else if (value.isDouble()) {
    writer.double_value(value.toDouble());
  } else if (value.isComplexDouble()) {
    writer.complex_value(value.toComplexDouble());
  } else if (value.isString()) {
    writer.string(value.toStringRef());
  } else {
    const auto elements = value.toListRef();
    const auto count = static_cast<uint32_t>(elements.size());
    if (value.isIntList()) {
      writer.tag(Tag::kIntList, count);
      for (const auto& element : elements) {
        const int64_t number = element.toInt();
        writer.two_words(&number);
      }
    } else if (value.isDoubleList()) {
      writer.tag(Tag::kDoubleList, count);
      for (const auto& element : elements) {
        const double number = element.toDouble();
        writer.two_words(&number);
      }
    } else {
      TORCH_INTERNAL_ASSERT(value.isBoolList());
      writer.tag(Tag::kBoolList, count);
      for (const auto& element : elements) writer.word(element.toBool());
    }
  }
}

template <class SlotNumbers>
void write_argument(Writer& writer, ArgumentKind kind, const c10::IValue& value,
                    const SlotNumbers& inputs, size_t* next) {
  switch (kind) {
    case ArgumentKind::kTensor:
      if (value.isTensor()) {
        write_tensor(writer, value.toTensor(), inputs, next);
        return;
      }
      break;
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList:
      if (value.isNone()) break;
      {
        const auto elements = value.toListRef();
        writer.tag(kind == ArgumentKind::kTensorList ? Tag::kSlotList : Tag::kOptionalSlotList,
                   static_cast<uint32_t>(elements.size()));
        for (const auto& element : elements) {
          if (element.isTensor() && element.toTensor().defined()) {
            TORCH_CHECK(on_workers(element.toTensor()),
                        "Expected all tensors to be on the same device, but found at least two "
                        "devices, dtorch:0 and ", element.toTensor().device(), "!");
            writer.word(inputs[(*next)++]);
          } else {
            writer.word(kNoSlot);
          }
        }
      }
      return;
    case ArgumentKind::kScalarList: {
      const auto elements = value.toListRef();
      writer.tag(Tag::kScalarList, static_cast<uint32_t>(elements.size()));
      for (const auto& element : elements) write_scalar(writer, element.toScalar());
      return;
    }
    case ArgumentKind::kDevice:
      if (value.isNone()) break;
      writer.tag(value.toDevice().type() == kDeviceType ? Tag::kDevice : Tag::kHostDevice);
      return;
    case ArgumentKind::kScalar:
    case ArgumentKind::kShaping:
    case ArgumentKind::kGenerator: break;
  }
  write_plain(writer, value);
}

// The seed and offset for one call, as a pair of ints.
inline c10::IValue draw(const c10::IValue& generator) {
  auto chosen = generator.isNone() ? default_generator() : generator.toGenerator();
  TORCH_CHECK(chosen.device().type() == kDeviceType, "Expected a 'dtorch' device type for "
              "generator but found '", chosen.device(), "'; make it with "
              "torch.Generator(device='dtorch')");
  const auto [seed, offset] = chosen.get<DtorchGenerator>()->draw();
  return c10::ivalue::Tuple::create(
      {static_cast<int64_t>(seed), static_cast<int64_t>(offset)});
}

// made: the call's first output. A worker's part of it takes the numbers of its own elements.
inline void write_generator(Writer& writer, const c10::IValue& pair, const TensorMeta* made) {
  if (made != nullptr && made->sharding != 0) {
    writer.tag(Tag::kShardedGenerator, static_cast<uint32_t>(made->sizes.size()));
    writer.word(made->sharding);
    writer.raw_ints(made->sizes);
  } else {
    writer.tag(Tag::kGenerator);
  }
  const auto& elements = pair.toTupleRef().elements();
  for (size_t i = 0; i < 2; ++i) {
    const int64_t number = elements[i].toInt();
    writer.two_words(&number);
  }
}

}  // namespace dtorch
