# Fused kernels made known to the operator that runs them.
from libc.stdint cimport int8_t


from libcpp.string cimport string

cdef extern from "worker/fused.h" namespace "dtorch":
    cppclass ScalarType "c10::ScalarType":
        pass
    cppclass Extent "dtorch::FusedKernel::Extent":
        pass
    cppclass DeviceFunction:
        DeviceFunction()
        DeviceFunction(const string& image, const string& name) except +
    cppclass DeviceVariant:
        DeviceVariant(DeviceFunction, uint32_t rows, uint32_t columns, uint32_t threads,
                      uint32_t shared_bytes, uint32_t num_scratch)
    cppclass FusedKernel:
        vector[DeviceVariant] variants
        bint reduces_rows
        vector[ScalarType] inputs, numbers, outputs
        vector[Extent] extents, output_extents
    void c_load_fused_kernel "dtorch::load_fused_kernel"(
        int64_t, const string&, FusedKernel) except +
    void c_load_device_kernel "dtorch::load_device_kernel"(int64_t, int8_t, FusedKernel)


cdef FusedKernel described_kernel(inputs, numbers, outputs) except *:
    cdef FusedKernel kernel
    for dtype, extent in inputs:
        kernel.inputs.push_back(<ScalarType><int>dtype)
        kernel.extents.push_back(<Extent><int>extent)
    for dtype in numbers:
        kernel.numbers.push_back(<ScalarType><int>dtype)
    for dtype, extent in outputs:
        kernel.outputs.push_back(<ScalarType><int>dtype)
        kernel.output_extents.push_back(<Extent><int>extent)
    return kernel


def load_fused_kernel(int64_t number, str path, inputs, numbers, outputs):
    """Make a kernel known to the operator dtorch::fused.

    path: of its library. inputs, outputs: (number of the dtype, number of its extent) of each.
    numbers: numbers of dtypes. Raises RuntimeError for a library that can't be loaded.
    """
    c_load_fused_kernel(number, path.encode(), described_kernel(inputs, numbers, outputs))


def load_device_kernel(int64_t number, int device, variants, bint reduces_rows, inputs, numbers,
                       outputs):
    """The same of a kernel for a GPU, the one that is the calling thread's.

    device: its index. variants: (machine code, name in it, rows, columns, threads, shared_bytes,
    num_scratch) of each, as src/worker/fused.h has them.
    """
    cdef FusedKernel kernel = described_kernel(inputs, numbers, outputs)
    cdef bytes code
    kernel.reduces_rows = reduces_rows
    for code, name, rows, columns, threads, shared_bytes, num_scratch in variants:
        kernel.variants.push_back(DeviceVariant(
            DeviceFunction(code, name.encode()), rows, columns, threads, shared_bytes, num_scratch
        ))
    c_load_device_kernel(number, device, kernel)
