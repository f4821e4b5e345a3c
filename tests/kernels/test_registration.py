"""What can be registered, and what is said of the rest. One process, one worker thread."""

import pytest
import torch

import dtorch_mpi as dt


def like(x):
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("kr::op(Tensor x -> Tensor", "is no schema"),
        ("op(Tensor x) -> Tensor", "expected a namespace, as in 'my::op'"),
        ("aten::relu(Tensor x) -> Tensor", "namespace of PyTorch's or dtorch_mpi's"),
        ("kr::op(int x) -> Tensor", "takes no tensor"),
        ("kr::op(Tensor x) -> int", "returns int: expected tensors"),
        ("kr::op(Tensor(a) x) -> Tensor(a)", "returns a view of an argument"),
    ],
)
def test_schemas_that_are_refused(schema, said):
    with pytest.raises(ValueError) as caught:
        dt.python_kernel(schema, meta=like)(lambda x: x)
    assert said in str(caught.value)


def test_functions_that_do_not_fit():
    schema = "kr::fits(Tensor x, int k=1, *, float by=2.0) -> Tensor"
    for function in (
        lambda x, k=1: x, lambda y, k=1, *, by=2.0: y, lambda x, k, *, by=2.0: x,
        lambda *args, **kwargs: args[0],
    ):  # fmt: skip
        with pytest.raises(TypeError, match="kr::fits: the function"):
            dt.python_kernel(schema, meta=like)(function)
    assert not hasattr(torch.ops.kr, "fits")
    dt.python_kernel(schema, meta=lambda x, k=1, *, by=2.0: like(x))(
        lambda x, k=1, by=2.0: x * k * by
    )
    assert torch.ops.kr.fits(torch.ones(2, device="dtorch"), by=3.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("sharding", "said"),
    [
        ("a, a -> a", "has 2 and 1 terms: expected 1 for its tensor arguments and 1 for"),
        ("a -> !", "has 1 and 0 terms"),
        ("elementwise", "expected terms as in"),
        ("*a* -> *a*", "one ... or * a term"),
    ],
)
def test_shardings_that_are_refused(sharding, said):
    with pytest.raises(ValueError) as caught:
        dt.python_kernel("kr::cut(Tensor x) -> Tensor", meta=like, sharding=sharding)(lambda x: x)
    assert said in str(caught.value)
    assert not hasattr(torch.ops.kr, "cut")  # nothing is left of it


def test_options_that_need_others():
    with pytest.raises(ValueError, match="has a sharding and no meta"):
        dt.python_kernel("kr::a(Tensor x) -> Tensor", sharding="... -> ...")
    with pytest.raises(ValueError, match="has setup_context and no backward"):
        dt.python_kernel("kr::a(Tensor x) -> Tensor", setup_context=like)
    with pytest.raises(ValueError, match="can't have a backward"):
        dt.python_kernel("kr::a(Tensor(a!) x) -> ()", backward=like)(lambda x: None)
    with pytest.raises(TypeError, match="expected an operator"):
        dt.register_sharding("kr::a", "... -> ...")


@pytest.mark.parametrize(
    ("schema", "native", "said"),
    [
        ("kr::b(Tensor self, int k) -> Tensor", "aten::relu", "wrong: ['k']"),
        ("kr::b(Tensor query) -> Tensor", "aten::scaled_dot_product_attention",
         "missing: ['key', 'value']"),
        ("kr::b(Tensor self) -> Tensor", "aten::no_such", "expected an operator such as"),
    ],
)  # fmt: skip
def test_alternatives_that_do_not_fit(schema, native, said):
    def kernel(self, k):
        return self

    if "int k" not in schema:
        kernel = {"self": lambda self: self, "query": lambda query: query}[
            schema.partition("Tensor ")[2].partition(")")[0]
        ]
    with pytest.raises(ValueError) as caught:
        dt.python_kernel(schema, meta=like, instead_of=native)(kernel)
    assert said in str(caught.value)


def test_an_alternative_to_an_operator_with_gradients():
    @dt.python_kernel(
        "kr::relu(Tensor self) -> Tensor", meta=like, sharding="... -> ...",
        instead_of="aten::relu", backward=lambda ctx, grad: grad * 10,
    )
    def relu(self):
        return self.clamp(0) + 1

    x = torch.tensor([-1.0, 2.0], device="dtorch", requires_grad=True)
    expected = {True: ([1.0, 3.0], [10.0, 10.0]), False: ([0.0, 2.0], [0.0, 1.0])}
    for chosen in False, True, False:
        with dt.use_kernels(*[relu] * chosen):
            y = torch.relu(x)
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert torch.relu(x.detach()).tolist() == expected[chosen][0]
        assert (y.tolist(), grad.tolist()) == expected[chosen]
    plain = torch.tensor([-1.0, 2.0])
    with dt.use_kernels(relu):
        assert torch.relu(plain).tolist() == [0.0, 2.0]  # other devices keep PyTorch's


def test_registered_twice():
    def kernel(x):
        return x + 1

    dt.python_kernel("kr::twice(Tensor x) -> Tensor", meta=like)(kernel)
    for name in "kr::twice", "kt::axpy":
        with pytest.raises(ValueError, match=f"{name} is registered already"):
            dt.python_kernel(f"{name}(Tensor x) -> Tensor", meta=like)(lambda x: x)
    with pytest.raises(ValueError, match="an operator kc::sine is registered already"):
        dt.python_kernel("kc::sine(Tensor x) -> Tensor", meta=like)(lambda x: x)


def test_the_same_function_again_replaces_itself():
    def define(extra, wide):
        def kernel(x):
            return (x + extra).repeat(2) if wide else x + extra

        meta = (lambda x: x.new_empty(2 * x.shape[0])) if wide else like
        return dt.python_kernel("kr::cell(Tensor x) -> Tensor", meta=meta)(kernel)

    x = torch.zeros(2, device="dtorch")
    made = []
    for extra in range(5):
        kernel = define(extra, wide=extra % 2 == 1)
        made += [kernel(x) for _ in range(20)]  # some still under way at the next definition
    for number, tensor in enumerate(made):
        extra = number // 20
        assert tensor.tolist() == [float(extra)] * (4 if extra % 2 else 2)


def test_another_schema_by_the_same_name():
    def define(schema):
        def kernel(x, k=2):
            return x * k

        def meta(x, k=2):
            return like(x)

        return dt.python_kernel(schema, meta=meta)(kernel)

    x = torch.ones(2, device="dtorch")
    first = define("kr::grown(Tensor x, int k=2) -> Tensor")
    assert first(x, 3).tolist() == [3.0, 3.0]
    second = define("kr::grown(Tensor x, float k=2.0) -> Tensor")
    assert second(x, 0.5).tolist() == [0.5, 0.5]


def test_a_custom_operator_again():
    x = torch.zeros(2, device="dtorch")
    for extra in range(4):
        @torch.library.custom_op("kr::again", mutates_args=())
        def again(x: torch.Tensor) -> torch.Tensor:
            return x + extra  # noqa: B023

        again.register_fake(like)
        assert [again(x).sum().item() for _ in range(3)] == [2.0 * extra] * 3


def test_a_kernel_of_the_device_that_the_user_registers():
    """The user's own for "dtorch" runs on the client, as PyTorch has it."""
    @torch.library.custom_op("kr::mine", mutates_args=(), device_types="dtorch")
    def mine(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "dtorch"
        return x * 2

    assert mine(torch.ones(2, device="dtorch")).tolist() == [2.0, 2.0]


def test_operators_that_are_made_of_others():
    """CompositeImplicitAutograd: PyTorch takes them apart above the device."""
    library = torch.library.Library("kr", "FRAGMENT")
    library.define("made_of(Tensor x) -> Tensor")
    library.impl("made_of", lambda x: (x * x).sum(), "CompositeImplicitAutograd")
    x = torch.full((2,), 3.0, device="dtorch", requires_grad=True)
    torch.ops.kr.made_of(x).backward()
    assert x.grad.tolist() == [6.0, 6.0]
