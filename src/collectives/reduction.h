#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "collectives/request.h"

namespace dtorch {

// The name of a reduction as users write it, such as "SUM".
const char* reduce_name(Reduce op);

// Whether elements of this dtype can be reduced so: bitwise operators need integers or bool,
// MIN and MAX an order (no complex numbers), AVG a dtype that holds fractions.
bool is_reducible(Reduce op, at::ScalarType dtype);

// Reduce `count` elements of each source, in the order of the sources, and write the result to
// every destination. A destination may be a source. float16 and bfloat16 are accumulated in
// float32 and rounded once; bool adds as `or` and multiplies as `and`; integers wrap; NaN
// propagates through MIN and MAX: as PyTorch's own operators do.
void reduce_in_order(Reduce op, at::ScalarType dtype, const std::vector<const char*>& sources,
                     const std::vector<char*>& destinations, int64_t count);

// Divide `count` elements by `divisor` in place; the dtype holds fractions.
void divide_in_place(at::ScalarType dtype, char* data, int64_t count, int divisor);

}  // namespace dtorch
