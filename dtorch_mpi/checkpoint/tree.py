"""The nested state as JSON, with a tensor's name in the place of each tensor.

What JSON has no word for is an object with one key that begins with "$": {"$tensor": name},
{"$tuple": [...]}, {"$dict": [[key, value], ...]}, {"$float": "nan"}, {"$complex": [real, imag]},
{"$bytes": base64}, {"$dtype": "float32"}, {"$device": "cpu"}. Nothing of it names a class or a
function: reading it makes plain values only.
"""

import base64
import math
import urllib.parse

import torch

from .elements import dtype_of, is_storable
from .errors import CheckpointError

_CHARACTERS = "!$&'()*+,;=:@~-._ []"  # of HDF5 names beside letters and digits; not "/" and "%"


def is_stateful(value):
    """Whether it has a state of its own: a module, an optimizer, a scheduler."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def state_of(value):
    """The state dict of a stateful object, with a module's parameters themselves in it."""
    # A parameter under two names is then known as one.
    return value.state_dict(keep_vars=True) if isinstance(value, torch.nn.Module) else (
        value.state_dict())  # fmt: skip


def joined(place, key):
    """The name of a tensor at a key below `place`."""
    key = urllib.parse.quote(str(key), safe=_CHARACTERS, errors="surrogatepass")
    if key in ("", ".", ".."):
        key = "%" + key
    return f"{place}/{key}" if place else key


def flatten(state):
    """(JSON value, {name: tensor}) of a nested state.

    Raises TypeError for a value that is neither a tensor nor a plain one, saying where it stands.
    """
    flattening = _Flattening()
    encoded = flattening.encode(state, "")
    return encoded, flattening.tensors


class _Flattening:
    def __init__(self):
        self.tensors = {}
        self._known = {}  # id of a tensor -> its name

    def encode(self, value, place):
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._name(value, place)}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, complex):
            return {"$complex": [self.encode(value.real, place), self.encode(value.imag, place)]}
        if isinstance(value, dict):
            return self._dict(value, place)
        if type(value) in (list, tuple, torch.Size):
            items = [self.encode(item, joined(place, i)) for i, item in enumerate(value)]
            return items if type(value) is list else {"$tuple": items}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if is_stateful(value):
            return self.encode(state_of(value), place)
        raise TypeError(
            f"the state holds a {type(value).__module__}.{type(value).__qualname__} at "
            f"{place or 'its top'}: expected tensors, numbers, text, None, dicts, lists and "
            "tuples of them, or an object with state_dict() and load_state_dict(). A checkpoint "
            "pickles nothing: turn it into those, arrays with torch.from_numpy"
        )

    def _dict(self, value, place):
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        pairs = []
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None), tuple)):
                raise TypeError(
                    f"the state has a key {key!r:.80} at {place or 'its top'}: expected text or "
                    "numbers"
                )
            pairs.append((key, self.encode(item, joined(place, key))))
        return dict(pairs) if plain else {
            "$dict": [[self.encode(key, place), item] for key, item in pairs]
        }  # fmt: skip

    def _name(self, tensor, place):
        if id(tensor) in self._known:
            return self._known[id(tensor)]
        if tensor.layout != torch.strided or not is_storable(tensor.dtype) or tensor.is_meta:
            raise TypeError(
                f"the tensor at {place} is {tensor.dtype} ({tensor.layout}) on {tensor.device}: "
                "expected a dense one of numbers or bools that has a value"
            )
        place = place or "tensor"
        name, count = place, 1
        while name in self.tensors:  # keys 0 and "0"
            count += 1
            name = f"{place}%{count}"
        self.tensors[name] = tensor
        self._known[id(tensor)] = name
        return name


def opened(node):
    """(kind, content) of a JSON value: ("tensor", name), ("dict", {key: node}), ("list", [node]),
    ("tuple", [node]) or ("value", the value).
    """
    if isinstance(node, list):
        return "list", node
    if not isinstance(node, dict):
        return "value", node
    if len(node) != 1 or not next(iter(node)).startswith("$"):
        return "dict", node
    ((tag, content),) = node.items()
    if tag == "$tensor":
        return "tensor", content
    if tag == "$tuple":
        return "tuple", content
    if tag == "$dict":
        return "dict", {decode(key, None): item for key, item in content}
    if tag == "$float":
        return "value", float(content)
    if tag == "$complex":
        return "value", complex(*(decode(part, None) for part in content))
    if tag == "$bytes":
        return "value", base64.b64decode(content)
    if tag == "$dtype":
        return "value", dtype_of(content)
    if tag == "$device":
        return "value", torch.device(content)
    raise CheckpointError(f"the state has a value marked {tag}, which this version does not know")


def decode(node, tensor_of):
    """The value of a JSON value; tensor_of(name) gives the tensors."""
    kind, content = opened(node)
    if kind == "tensor":
        return tensor_of(content)
    if kind == "dict":
        return {key: decode(item, tensor_of) for key, item in content.items()}
    if kind in ("list", "tuple"):
        items = [decode(item, tensor_of) for item in content]
        return items if kind == "list" else tuple(items)
    return content
