# LibTorch as the Cython rooms use it.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "ATen/ATen.h" namespace "at" nogil:
    cppclass Tensor:
        Tensor()
        Tensor(const Tensor&)
        cbool defined() const
        int64_t numel() const
        int64_t dim() const
        size_t nbytes() const


cdef extern from "torch/csrc/autograd/python_variable.h":
    const Tensor& THPVariable_Unpack(object tensor)
    object THPVariable_Wrap(const Tensor& tensor)
    bint THPVariable_Check(object tensor)
