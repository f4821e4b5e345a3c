// Values of a record as arguments of a LibTorch call on this worker.
#pragma once

#include <ATen/ops/scalar_tensor.h>

#include "worker/state.h"

namespace dtorch {

// What stands in the way of the call, if anything.
struct Obstacle {
  FailurePtr failure;  // the first in the program's order
  bool absent = false;

  void add(const FailurePtr& other) {
    if (other && (!failure || other->record < failure->record)) failure = other;
  }
};

inline uint64_t mixed_seed(uint64_t seed, uint64_t offset) {
  uint64_t mixed = seed + 0x9e3779b97f4a7c15ull * (offset + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
  return mixed ^ (mixed >> 31);
}

class ArgumentDecoder {
 public:
  // seeds: the operator takes its random numbers from the state of a CPU generator.
  ArgumentDecoder(WorkerState& state, Reader& reader, bool seeds = true)
      : state_(state), reader_(reader), seeds_(seeds) {}

  // Appends `count` arguments to the stack. Raises WireError.
  Obstacle decode(uint32_t count, Stack* stack) {
    for (uint32_t i = 0; i < count; ++i) stack->push_back(argument());
    return std::move(obstacle_);
  }

 private:
  at::Tensor tensor(uint32_t slot) {
    if (slot == kNoSlot) return {};
    auto& entry = state_.known_slot(slot);
    if (C10_UNLIKELY(entry.state != SlotEntry::State::kTensor)) {
      obstacle_.add(entry.failure);
      if (entry.state == SlotEntry::State::kAbsent) obstacle_.absent = true;
      return {};
    }
    if (C10_UNLIKELY(!state_.spoiled.empty())) obstacle_.add(failure_of(state_, entry));
    return entry.tensor;
  }

  // Where this worker stands in a sharding of a tensor of `dims` dims; null, with the obstacle
  // noted, where it is no member.
  const MeshMember* member_of(const Sharding& sharding, size_t dims) {
    const auto* member = state_.member(*sharding.mesh);
    if (member == nullptr) {
      obstacle_.absent = true;
      return nullptr;
    }
    check_placements(static_cast<int64_t>(dims), sharding.mesh->shape, sharding.placements);
    return member;
  }

  // The sizes of this worker's part; of the whole where it has none.
  std::vector<int64_t> own_sizes(uint32_t number, const Sizes& sizes) {
    std::vector<int64_t> whole(sizes.begin(), sizes.end());
    if (number == 0) return whole;
    const auto sharding = state_.sharding(number);
    const auto* member = member_of(*sharding, sizes.size());
    if (member == nullptr) return whole;
    return local_sizes(whole, sharding->mesh->shape, sharding->placements, member->coordinate);
  }

  // Where this worker's part of a tensor of these global sizes lies.
  RandomPart own_part(uint32_t number, const Sizes& sizes) {
    RandomPart part;
    if (number == 0) return part;
    const auto sharding = state_.sharding(number);
    const auto* member = member_of(*sharding, sizes.size());
    if (member == nullptr) return part;
    part.is_whole = false;
    part.global_sizes.assign(sizes.begin(), sizes.end());
    part.offsets = local_offsets(part.global_sizes, sharding->mesh->shape, sharding->placements,
                                 member->coordinate);
    return part;
  }

  void set_generator(RandomPart part) {
    part.stream.seed = reader_.two_words<uint64_t>();
    part.stream.offset = reader_.two_words<uint64_t>();
    auto* generator = state_.generator.get<WorkerGenerator>();
    if (seeds_) generator->set_current_seed(mixed_seed(part.stream.seed, part.stream.offset));
    generator->part = std::move(part);
  }

  c10::IValue argument() {
    uint32_t payload;
    switch (reader_.peek()) {
      case Tag::kNone: reader_.word(); return {};
      case Tag::kSlot: reader_.tag(&payload); return tensor(payload);
      case Tag::kSmallInt:
      case Tag::kInt: return reader_.int_value();
      case Tag::kDouble: reader_.word(); return reader_.two_words<double>();
      case Tag::kBool: reader_.tag(&payload); return payload != 0;
      case Tag::kComplex: return reader_.scalar().toComplexDouble();
      case Tag::kIntList: {
        const auto values = reader_.int_list();
        return c10::IValue(c10::IntArrayRef(values));
      }
      case Tag::kDoubleList: {
        const uint32_t count = reader_.expect(Tag::kDoubleList);
        reader_.need(uint64_t{count} * 2);
        c10::List<double> list;
        for (uint32_t i = 0; i < count; ++i) list.push_back(reader_.two_words<double>());
        return list;
      }
      case Tag::kBoolList: {
        const uint32_t count = reader_.expect(Tag::kBoolList);
        reader_.need(count);
        c10::List<bool> list;
        for (uint32_t i = 0; i < count; ++i) list.push_back(reader_.word() != 0);
        return list;
      }
      case Tag::kSlotList: {
        const uint32_t count = reader_.expect(Tag::kSlotList);
        reader_.need(count);
        c10::List<at::Tensor> list;
        list.reserve(count);
        for (uint32_t i = 0; i < count; ++i) list.push_back(tensor(reader_.word()));
        return list;
      }
      case Tag::kOptionalSlotList: {
        const uint32_t count = reader_.expect(Tag::kOptionalSlotList);
        reader_.need(count);
        c10::List<std::optional<at::Tensor>> list;
        for (uint32_t i = 0; i < count; ++i) {
          const uint32_t slot = reader_.word();
          list.push_back(slot == kNoSlot ? std::nullopt : std::optional(tensor(slot)));
        }
        return list;
      }
      case Tag::kScalarList: {
        const uint32_t count = reader_.expect(Tag::kScalarList);
        reader_.need(count);
        c10::List<c10::Scalar> list;
        for (uint32_t i = 0; i < count; ++i) list.push_back(reader_.scalar());
        return list;
      }
      case Tag::kString: return std::string(reader_.string());
      case Tag::kDevice: reader_.word(); return state_.device;
      case Tag::kHostDevice: reader_.word(); return c10::Device(c10::kCPU);
      case Tag::kScalarTensor: {
        reader_.tag(&payload);
        const uint32_t dtype = payload & 0xff;
        if (dtype >= static_cast<uint32_t>(c10::ScalarType::Undefined)) Reader::fail("an unknown dtype");
        auto value = at::scalar_tensor(
            reader_.scalar(), at::TensorOptions().dtype(static_cast<c10::ScalarType>(dtype)));
        value.unsafeGetTensorImpl()->set_wrapped_number((payload >> 8 & 1) != 0);
        return value;
      }
      case Tag::kGenerator: {
        reader_.word();
        set_generator({});
        return state_.generator;
      }
      case Tag::kShardedGenerator: {
        const uint32_t count = reader_.expect(Tag::kShardedGenerator);
        const uint32_t number = reader_.word();
        set_generator(own_part(number, reader_.raw_ints(count)));
        return state_.generator;
      }
      case Tag::kLocalSizes: {
        const uint32_t count = reader_.expect(Tag::kLocalSizes);
        const uint32_t number = reader_.word();
        const auto sizes = reader_.raw_ints(count);
        return c10::IValue(c10::IntArrayRef(own_sizes(number, sizes)));
      }
      case Tag::kLocalStrides: {
        const uint32_t count = reader_.expect(Tag::kLocalStrides);
        const uint32_t number = reader_.word();
        const auto sizes = reader_.raw_ints(count), strides = reader_.raw_ints(count);
        if (number == 0) return c10::IValue(c10::IntArrayRef(strides));
        const auto own = own_sizes(number, sizes);
        if (obstacle_.absent) return {};
        return c10::IValue(c10::IntArrayRef(local_strides(strides, own)));
      }
      default: Reader::fail("a tag that opens no argument");
    }
  }

  WorkerState& state_;
  Reader& reader_;
  const bool seeds_;
  Obstacle obstacle_;
};

}  // namespace dtorch
