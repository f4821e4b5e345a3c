#include "capture/compiled_metas.h"

#include <unordered_map>

#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/normal_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/sqrt_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>

namespace dtorch {
namespace {

using at::Scalar, at::Tensor, c10::KernelFunction;

using Unary = Tensor(const Tensor&);
using Binary = Tensor(const Tensor&, const Tensor&);
using BinaryWithAlpha = Tensor(const Tensor&, const Tensor&, const Scalar&);
using Affine = Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
using MeanOfDims = Tensor(const Tensor&, at::OptionalIntArrayRef, bool,
                          std::optional<at::ScalarType>);
using Normal = Tensor&(Tensor&, double, double, std::optional<at::Generator>);

// Function: names one of the overloads.
template <class Function>
KernelFunction boxed(Function* kernel) {
  return KernelFunction::makeFromUnboxedRuntimeFunction(kernel);
}

}  // namespace

const KernelFunction* compiled_meta(const c10::OperatorName& name) {
  static const auto* kernels = new std::unordered_map<c10::OperatorName, KernelFunction>{
      {{"aten::add", "Tensor"}, boxed<BinaryWithAlpha>(at::meta::add)},
      {{"aten::sub", "Tensor"}, boxed<BinaryWithAlpha>(at::meta::sub)},
      {{"aten::mul", "Tensor"}, boxed<Binary>(at::meta::mul)},
      {{"aten::div", "Tensor"}, boxed<Binary>(at::meta::div)},
      {{"aten::addmm", ""}, boxed<Affine>(at::meta::addmm)},
      {{"aten::mean", "dim"}, boxed<MeanOfDims>(at::meta::mean)},
      {{"aten::normal_", ""}, boxed<Normal>(at::meta::normal_)},
      {{"aten::pow", "Tensor_Scalar"}, boxed<Tensor(const Tensor&, const Scalar&)>(at::meta::pow)},
      {{"aten::cat", ""}, boxed<Tensor(const at::ITensorListRef&, int64_t)>(at::meta::cat)},
      {{"aten::exp", ""}, boxed<Unary>(at::meta::exp)},
      {{"aten::neg", ""}, boxed<Unary>(at::meta::neg)},
      {{"aten::sqrt", ""}, boxed<Unary>(at::meta::sqrt)},
      {{"aten::tanh", ""}, boxed<Unary>(at::meta::tanh)},
  };
  const auto found = kernels->find(name);
  return found == kernels->end() ? nullptr : &found->second;
}

}  // namespace dtorch
