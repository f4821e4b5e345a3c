"""The operators that a real GPU has kernels for, from PyTorch's own list of operators."""

import re
from pathlib import Path

import torchgen

LIST = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"


def entries():
    """Per operator of the list: its name, and its other lines with their comments."""
    text = LIST.read_text()
    for entry in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        first, _, rest = entry.partition("\n")
        yield first.partition("(")[0], rest


def cuda_operators():
    """Name "aten::add.out" -> which devices its tensors may be on, as fallback.h has them.

    An operator whose kernel is made of other operators needs none of its own, and is left out.
    """
    listed = dict(entries())

    def field(name, key):
        found = re.search(rf"^  {key}: *(.*)$", listed[name], re.MULTILINE)
        return found.group(1) if found else ""

    def has_cuda(name):
        keys = re.findall(r"^    ([\w, ]+): *\w+$", listed[name], re.MULTILINE)
        if any(key.strip() == "CUDA" for line in keys for key in line.split(",")):
            return True
        if "\n  ufunc_inner_loop:" in listed[name]:  # generated for CPU and CUDA
            return True
        delegate = field(name, "structured_delegate").strip()
        return bool(delegate) and has_cuda(delegate)

    def rule(name):
        check = field(name, "device_check")
        if "NoCheck" not in check:
            return "one device"
        return "tensor iterator" if "TensorIterator" in check else "any"

    # It picks cuDNN's kernels, of which each has an operator.
    names = ["_convolution", *filter(has_cuda, listed)]
    return {f"aten::{name}": rule(name) for name in names}
