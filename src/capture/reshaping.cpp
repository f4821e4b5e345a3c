// In-place operators that give a tensor other sizes. Detached copies share a tensor's slot and
// keep their sizes, and other sizes may lie in another way on the mesh: so the tensor takes the
// slot of a view, or of a new tensor, and whoever shared its old slot keeps that.
#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "capture/aliases.h"
#include "capture/capture.h"
#include "tensor/slot.h"

namespace dtorch {
namespace {

using at::Tensor;

Tensor& take_over(Tensor& self, const Tensor& made) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_backend_meta(c10::intrusive_ptr<c10::BackendMeta>::reclaim_copy(
      made.unsafeGetTensorImpl()->get_backend_meta()));
  impl->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  return self;
}

Tensor& squeeze_(Tensor& self) { return take_over(self, at::squeeze(self)); }
Tensor& squeeze_dim_(Tensor& self, int64_t dim) { return take_over(self, at::squeeze(self, dim)); }
Tensor& squeeze_dims_(Tensor& self, at::IntArrayRef dims) {
  return take_over(self, at::squeeze(self, dims));
}
Tensor& unsqueeze_(Tensor& self, int64_t dim) { return take_over(self, at::unsqueeze(self, dim)); }
Tensor& t_(Tensor& self) { return take_over(self, at::t(self)); }
Tensor& transpose_(Tensor& self, int64_t dim0, int64_t dim1) {
  return take_over(self, at::transpose(self, dim0, dim1));
}
const Tensor& as_strided_(const Tensor& self, c10::SymIntArrayRef sizes,
                          c10::SymIntArrayRef strides, std::optional<c10::SymInt> offset) {
  Tensor target = self;
  take_over(target, at::as_strided_symint(self, sizes, strides, offset));
  return self;
}

// Sharded tensors have no common memory that could grow: the elements that remain go to a new
// tensor, which lies as the old one if it has the dims for that.
const Tensor& resize_(const Tensor& self, c10::IntArrayRef sizes,
                      std::optional<at::MemoryFormat> format) {
  if (slot_of(self).sharding == 0) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::resize_", "");
    Stack stack{self, sizes, format};
    capture(op, &stack);
    return self;
  }
  if (self.sizes() == sizes) return self;
  auto made = at::empty(sizes, self.options(), format);
  const int64_t kept = std::min(made.numel(), self.numel());
  if (kept > 0) {
    // A clone: of a view there would be a base to keep.
    made = at::cat({self.reshape(-1).slice(0, 0, kept), made.reshape(-1).slice(0, kept)})
               .view(sizes)
               .clone(format.value_or(at::MemoryFormat::Contiguous));
  }
  const Laid before{self, slot_of(self).sharding};
  Tensor target = self;
  take_over(target, made);
  lay_back({before});
  return self;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("squeeze_", &squeeze_);
  library.impl("squeeze_.dim", &squeeze_dim_);
  library.impl("squeeze_.dims", &squeeze_dims_);
  library.impl("unsqueeze_", &unsqueeze_);
  library.impl("t_", &t_);
  library.impl("transpose_", &transpose_);
  library.impl("as_strided_", &as_strided_);
  library.impl("resize_", &resize_);
}

}  // namespace dtorch
