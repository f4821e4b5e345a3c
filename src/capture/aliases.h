// Views and writes: what one tensor writes, all that share its memory must show.
#pragma once

#include "capture/operator_info.h"

namespace dtorch {

// Before a call that writes to a tensor, or that reads memory beyond it: where a view of that
// memory is a copy on the workers, or the memory itself is cut, lays base and views out whole.
void join_views(const OperatorInfo& info, const c10::IValue* arguments);

// A tensor, and how it lay before it was laid out whole or got other sizes.
struct Laid {
  at::Tensor tensor;
  uint32_t sharding;
};
// Lays the call's cut out= arguments out whole: they may get other sizes, which nobody knows
// beforehand.
std::vector<Laid> lay_out_results(const OperatorInfo& info, const c10::IValue* arguments);
// Those that have the dims for it, and that no view needs whole, lie as before again.
void lay_back(const std::vector<Laid>& laid);

}  // namespace dtorch
