"""A simulated GPU computes what the CPU does, and has the operators that a real one has."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree


def on_gpu(gpu, value):
    return pytree.tree_map_only(torch.Tensor, gpu.tensor, value)


def on_cpu(value):
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), value)


def some(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def add_in_place(a, b):
    a.t().add_(b.t(), alpha=2)
    return a


def write_through_a_view(a, b):
    a[1:, ::2] = b[1:, ::2]
    a.select(1, 0).fill_(7)
    return a


def add_to_out(a, b):
    out = torch.empty(0, dtype=a.dtype, device=a.device)
    return torch.add(a, b, out=out), out.shape


def resize(a, b):
    a.resize_(8, 9).fill_(3)
    return a, b.resize_(2, 2)


def set_to(a, b):
    return a.set_(b), torch.empty(0, device=b.device).set_(b.untyped_storage(), 2, (2, 3), (3, 1))


PROGRAMS = {
    "add": lambda a, b: a + b,
    "add a number": lambda a, b: a + 2 - 3 * b,
    "scalar tensor of the CPU": lambda a, b: a * torch.tensor(3.0, dtype=torch.float64),
    "in place": add_in_place,
    "views": write_through_a_view,
    "out": add_to_out,
    "resize": resize,
    "set": set_to,
    "matmul": lambda a, b: a @ b.t(),
    "bmm": lambda a, b: torch.bmm(a.expand(2, -1, -1), b.t().expand(2, -1, -1)),
    "linear": lambda a, b: F.linear(a, b, b[:, 0]),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "sum": lambda a, b: (a.sum(), a.mean(0), b.amax(1), b.argmax(), a.var(), a.cumsum(0)),
    "cat": lambda a, b: (torch.cat([a, b]), torch.stack([a, b]), torch.cat([a, a, b], 1)),
    "split": lambda a, b: [part * 2 for part in (*a.split(2), *b.unbind(1), *a.chunk(2, 1))],
    "foreach": lambda a, b: (torch._foreach_add([a, b], 1), torch._foreach_mul_([a, b], 2), a, b),
    "index": lambda a, b: a[torch.tensor([1, 0], device=a.device)],
    "index of the CPU": lambda a, b: a[torch.tensor([1, 0])],
    "index with a mask": lambda a, b: a[b > 0],
    "index put": lambda a, b: a.index_put((torch.tensor([0], device=a.device),), b[0]),
    "gather": lambda a, b: a.gather(1, (b > 0).long()),
    "scatter": lambda a, b: a.scatter_add_(1, (b > 0).long(), b),
    "where": lambda a, b: torch.where(a > b, a, 0.0),
    "nonzero": lambda a, b: (a > 0).nonzero(),
    "item": lambda a, b: (a[0, 0].item(), torch.equal(a, b), bool((a == a).all())),
    "sort": lambda a, b: (a.sort(1), a.topk(2, 1), a.unique()),
    "softmax": lambda a, b: (a.softmax(1), F.cross_entropy(a, b.abs().softmax(1))),
    "norms": lambda a, b: (F.layer_norm(a, (5,)), F.batch_norm(a, None, None, training=True),
                           torch.linalg.vector_norm(a), F.group_norm(a[None, :4], 2)),
    "convolution": lambda a, b: F.conv2d(a[None, None], b[None, None, :2, :2], padding=1),
    "convolutions": lambda a, b: (
        F.conv2d(a.expand(1, 3, 4, 5), b[:3, None, :2, None], groups=3),
        F.conv_transpose2d(a[None, None], b[None, None], stride=2),
        F.conv3d(a[None, None, None], b[None, None, None, :2, :2])),
    "lstm": lambda a, b: torch.lstm_cell(a, (b, a.sin()), *[
        part.repeat(20, *[1] * (part.dim() - 1)) for part in (b[:1], a[:1], b[0, :1], a[0, :1])]),
    "gru": lambda a, b: torch.gru_cell(a, b, b[:1].repeat(15, 1), a[:1].repeat(15, 1)),
    "embedding": lambda a, b: F.embedding((a > 0).long(), b),
    "types": lambda a, b: (a.half() + b.half(), a.double(), a.long(), a > b, a.to(torch.bfloat16)),
    "complex": lambda a, b: (torch.complex(a, b).conj() * 2, torch.complex(a, b).imag,
                             torch.view_as_real(torch.complex(a, b))),
    "linalg": lambda a, b: (torch.linalg.qr(a), torch.linalg.solve(a.t() @ a + torch.eye(
        5, device=a.device), b.t()), torch.linalg.cholesky(b @ b.t() + torch.eye(
            4, device=b.device))),
    "factories": lambda a, b: (
        torch.arange(5, device=a.device), torch.ones_like(a), torch.eye(3, device=a.device),
        torch.linspace(0, 1, 4, device=a.device), torch.full((2,), 3, device=a.device),
        torch.tril_indices(3, 3, device=a.device), a.new_zeros(2), torch.zeros_like(a)),
    "shapes": lambda a, b: (a.reshape(-1), a.t().contiguous(), a.permute(1, 0), a.flatten(),
                            a.unsqueeze(0).expand(3, -1, -1).clone(), a.roll(1), a.flip(0),
                            torch.nn.functional.pad(a, (1, 1)), a.repeat(2, 1), a.tril()),
    "copies": lambda a, b: (a.clone(), b.copy_(a), b.t().copy_(a.t()), a.copy_(b[0])),
    "optional tensors": lambda a, b: (a.clamp(min=b), a.clamp(max=b), torch.histc(a, 4)),
    "adam": lambda a, b: torch._fused_adam_(
        [a], [b.clone()], [torch.zeros_like(a)], [torch.zeros_like(a)], [],
        [torch.ones((), device=a.device)], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0,
        eps=1e-8, amsgrad=False, maximize=False) or a,
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_values_are_those_of_the_cpu(gpu, program):
    arguments = [some(4, 5), some(4, 5, seed=1)]
    on_device = on_gpu(gpu, arguments)
    found = program(*on_device)
    for leaf in pytree.tree_leaves(found):
        assert not isinstance(leaf, torch.Tensor) or leaf.is_cuda
    expected = program(*arguments)
    torch.testing.assert_close(on_cpu(found), expected, equal_nan=True)
    torch.testing.assert_close(on_cpu(on_device), arguments)
    assert gpu.violations() == []


def test_views_share_memory(gpu):
    a = gpu.tensor(some(4, 5))
    assert a.view(20)[3:].untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
    assert a.add_(1) is a
    out = gpu.tensor(some(4, 5))
    assert torch.mul(a, 2, out=out) is out


def test_generators_repeat(gpu):
    def draw(device):
        generator = torch.Generator(device).manual_seed(3)
        return torch.rand(4, device=device, generator=generator).cpu()

    assert draw("cuda:1").equal(draw("cuda:1"))
    assert draw("cuda:1").equal(draw("cpu"))  # the kernels are the CPU's
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(4, device="cuda", generator=torch.Generator())


def test_an_mlp_trains(gpu):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.LayerNorm(8),
                                torch.nn.Linear(8, 2))  # fmt: skip
    inputs, classes = some(6, 5), torch.tensor([0, 1, 1, 0, 1, 0])
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def train(inputs, classes):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(inputs), classes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().cpu())
        return losses

    expected = train(inputs, classes)
    model.load_state_dict(state)
    model.to("cuda:1")
    found = train(gpu.tensor(inputs, 1), gpu.tensor(classes, 1))
    torch.testing.assert_close(found, expected)
    assert gpu.violations() == []


@pytest.mark.parametrize("causal", [False, True])
def test_efficient_attention(gpu, causal):
    tensors = [some(2, 3, 7, 8, seed=seed) for seed in range(4)]
    grad, *inputs = tensors
    for tensor in inputs:
        tensor.requires_grad_()
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    gradients = torch.autograd.grad(expected, inputs, grad)
    inputs = [gpu.tensor(tensor.detach()).requires_grad_() for tensor in inputs]
    output, logsumexp, seed, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *inputs, None, True, 0.0, causal)
    assert (logsumexp.shape, seed.shape) == ((2, 3, 32), ())
    torch.testing.assert_close(output.cpu(), expected)
    found = torch.autograd.grad(output, inputs, gpu.tensor(grad))
    torch.testing.assert_close(on_cpu(found), gradients)


def test_attention_chooses_fused_kernels(gpu):
    inputs = [some(2, 3, 7, 8, seed=seed) for seed in range(3)]
    expected = F.scaled_dot_product_attention(*inputs)
    on_device = on_gpu(gpu, inputs)
    choose = torch.ops.aten._fused_sdp_choice
    flash, efficient = (torch.nn.attention.SDPBackend.FLASH_ATTENTION.value,
                        torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION.value)  # fmt: skip
    assert choose(*on_device) == efficient
    assert choose(*[tensor.half() for tensor in on_device]) == flash
    torch.testing.assert_close(F.scaled_dot_product_attention(*on_device).cpu(), expected)


def test_recurrent_gradients(gpu):
    for network in (torch.nn.LSTM(3, 4), torch.nn.GRU(3, 4)):
        inputs = some(5, 2, 3)
        weights = list(network.parameters())
        expected = torch.autograd.grad(network(inputs)[0].square().sum(), weights)
        network.to("cuda")
        found = network(gpu.tensor(inputs))[0].square().sum()
        found = torch.autograd.grad(found, list(network.parameters()))
        torch.testing.assert_close(on_cpu(found), expected)


def test_flash_attention(gpu):
    inputs = [some(2, 3, 7, 8, seed=seed).bfloat16() for seed in range(3)]
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    found = torch.ops.aten._scaled_dot_product_flash_attention(*on_gpu(gpu, inputs), 0.0, True)
    torch.testing.assert_close(found[0].cpu(), expected, atol=2e-2, rtol=2e-2)
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        torch.ops.aten._scaled_dot_product_flash_attention(
            *[gpu.tensor(tensor.float()) for tensor in inputs])


def test_what_a_gpu_lacks_fails(gpu):
    query = gpu.tensor(some(1, 2, 3, 8))
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::_scaled_dot_product_flash"
                       r"_attention_for_cpu' with arguments from the 'CUDA' backend"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.ones(2, 2, device="cuda", dtype=torch.long).mm(
            torch.ones(2, 2, device="cuda", dtype=torch.long))


def test_tensors_on_other_devices_are_refused(gpu):
    for other in (some(4), gpu.tensor(some(4), 1)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            gpu.tensor(some(4)) + other
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        gpu.tensor(some(4, 4)) @ some(4, 4)
