// Records that say what numbers stand for: operators, sites, meshes, shardings.
#pragma once

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "worker/failure.h"

namespace dtorch {

// Write all of their first argument, and read none of it.
inline const std::unordered_set<std::string_view> kWritesOver = {
    "aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_",
    "aten::_foreach_copy_", "aten::_foreach_zero_"};

// What stands in on accelerators for operators that only the CPU has (worker/attention.cpp).
inline const std::unordered_map<std::string_view, const char*> kOnAccelerators = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "dtorch::attention"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "dtorch::attention_backward"}};

inline void define_operator(WorkerState& state, Reader& reader, uint32_t number) {
  constexpr uint32_t kMost = 1 << 15;
  const std::string name(reader.string()), overload(reader.string());
  if (number >= kMost) Reader::fail("an operator number beyond what PyTorch has");
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findOp({name, overload});
  const bool is_users = is_users_operator(name);
  const bool is_known = op && op->hasSchema();
  if (!is_known && !is_users) Reader::fail(("operator " + name + ", which is not registered").c_str());
  // Random operators have kernels of our own, by which numbers do not depend on the mesh.
  const auto random = own_random_operator({name, overload});
  if (random) op = random;
  if (number >= state.operators.size()) state.operators.resize(number + 64);
  auto& entry = state.operators[number];
  entry = {};
  entry.name = overload.empty() ? name : name + "." + overload;
  if (is_known) {
    entry.handle = op;
    if (const auto own = kOnAccelerators.find(name); own != kOnAccelerators.end() && !state.device.is_cpu()) {
      entry.handle = dispatcher.findOp({own->second, ""});
    }
    entry.draws_by_place = random.has_value();
    entry.unchecked = UncheckedArguments(op->schema());
    entry.writes_over = kWritesOver.contains(name);
    if (is_users) entry.users = std::make_shared<UsersOperator>();
  }
  if (state.notes_flight) flight_record().define_op(number, name);
}

inline void define_site(WorkerState& state, Reader& reader, uint32_t number) {
  const auto text = reader.string();
  if (state.notes_flight) flight_record().define_site(number, text);
}

// This worker's place in a mesh, with the groups of its axes; nothing where it has none.
inline std::optional<MeshMember> make_member(WorkerState& state, const Mesh& mesh) {
  if (!state.graphs->everybody && state.num_workers <= 1 << 20) {
    std::vector<int32_t> all;
    for (int32_t worker = 0; worker < state.num_workers; ++worker) all.push_back(worker);
    state.graphs->everybody = state.make_group(all, state.worker);
  }
  const WaitNote note(*state.activity, Activity::kOthers, state.site);
  MeshMember member;
  member.coordinate = coordinate_of(mesh, state.worker);
  if (member.coordinate.empty()) return std::nullopt;
  for (size_t axis = 0; axis < mesh.shape.size(); ++axis) {
    int64_t stride = 1;
    for (size_t inner = axis + 1; inner < mesh.shape.size(); ++inner) stride *= mesh.shape[inner];
    int64_t origin = 0, outer = 1;
    for (size_t a = mesh.shape.size(); a-- > 0; outer *= mesh.shape[a]) {
      if (a != axis) origin += member.coordinate[a] * outer;
    }
    std::vector<int32_t> line;
    for (int64_t i = 0; i < mesh.shape[axis]; ++i) line.push_back(mesh.workers[origin + i * stride]);
    member.groups.push_back(state.make_group(line, static_cast<int>(member.coordinate[axis])));
  }
  return member;
}

inline void define_mesh(WorkerState& state, Reader& reader, uint32_t number) {
  const auto shape = reader.int_list(), workers = reader.int_list();
  // A group with a member that does not exist would be waited for.
  const std::unordered_set<int64_t> distinct(workers.begin(), workers.end());
  if (distinct.size() != workers.size()) Reader::fail("a mesh that names a worker twice");
  for (int64_t worker : workers) {
    if (worker < 0 || worker >= state.num_workers) Reader::fail("a mesh of workers that do not exist");
  }
  try {
    ShardingTable::get().define_mesh(number, {shape.begin(), shape.end()}, {workers.begin(), workers.end()});
    const auto mesh = ShardingTable::get().mesh(number);
    std::lock_guard<std::mutex> guard(state.graphs->meshes_mutex);
    auto& known = state.graphs->meshes[number];
    if (known.mesh != mesh) known = {mesh, make_member(state, *mesh)};
    if (known.member) {
      state.members[number] = *known.member;
    } else {
      state.members.erase(number);
    }
  } catch (const WireError&) {
    throw;
  } catch (const std::exception& error) {
    make_failure(state, std::string("making a mesh: ") + message_of(error));
  }
}

inline void define_sharding(WorkerState& state, Reader& reader, uint32_t number) {
  const uint32_t mesh = reader.word();
  const auto placements = reader.int_list();
  try {
    ShardingTable::get().define_sharding(number, mesh, {placements.begin(), placements.end()});
  } catch (const std::exception& error) {
    Reader::fail(error.what());
  }
}

}  // namespace dtorch
