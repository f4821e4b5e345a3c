#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "collectives/request.h"

namespace dtorch {

// Checks of one member's arguments. Each raises a ValueError (TypeError for dtypes) that says
// what was got and what was expected.

// A strided tensor on the caller's device. `role` is the argument's name.
void check_tensor(const Caller& caller, const at::Tensor& tensor, const char* role);

// Strided tensors of one dtype on the caller's device, at least one.
void check_tensors(const Caller& caller, const std::vector<at::Tensor>& tensors,
                   const char* role);

// A list of one valid tensor, which is what c10d passes for a member with one device.
const at::Tensor& only_tensor(const Caller& caller, const std::vector<at::Tensor>& tensors,
                              const char* role);

// A list of one list with a valid tensor for each member.
const std::vector<at::Tensor>& one_for_each_member(
    const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists, const char* role);

void check_same_dtype(const Caller& caller, const at::Tensor& output, const at::Tensor& input);
void check_same_shape(const Caller& caller, const at::Tensor& got, const char* got_role,
                      const at::Tensor& expected, const char* expected_role);
// `whole` has the elements of `part` from each member.
void check_whole(const Caller& caller, const at::Tensor& whole, const char* whole_role,
                 const at::Tensor& part, const char* part_role);
void check_reducible(const Caller& caller, Reduce op, at::ScalarType dtype);
void check_member(const Caller& caller, int64_t rank, const char* role);

// The elements that go to or come from each member, from split sizes in rows.
std::vector<int64_t> split_counts(const Caller& caller, const at::Tensor& tensor,
                                  const std::vector<int64_t>& split_sizes, const char* role);

}  // namespace dtorch
