import torch
from repeated import count, rewritten, settle

import dtorch_mpi as dt


def test_a_dying_input_is_written_over():
    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        for i in range(5):
            x = torch.tanh(torch.relu(x @ x.t()) * 0.25 + i)
        return x

    stages, _ = rewritten(program)
    for name in ("aten::relu_", "aten::mul_.Tensor", "aten::tanh_"):
        assert count(stages["memory_reuse"], name) == 5
    assert count(stages["memory_reuse"], "aten::relu") == 0


def test_an_input_that_lives_on_is_not():
    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        kept, views = [], []
        for _ in range(4):
            x = x @ x.t()
            kept.append(x)
            y = torch.relu(x) + torch.relu(x.view(16)).view(4, 4)
            part = y[0]
            x = torch.tanh(y)  # y's memory is still part's
            views.append(part.sum())
            del y, part
        return torch.stack(kept), torch.stack(views)

    rewritten(program)


def test_another_dtype_or_size_is_not():
    def program(device, step):
        x = torch.full((4, 1), 0.5 + step, device=device)
        for _ in range(4):
            x = torch.tanh(x.double().sum(1, keepdim=True)) + torch.ones(4, 2, device=device)
            x = (x > 0.5).float().sum(1, keepdim=True)
        return x

    rewritten(program)


def test_the_peak_is_lower():
    def peak():
        dt.sync()
        torch.dtorch.reset_peak_memory_stats()
        before = torch.dtorch.max_memory_allocated()
        x = torch.full((1 << 24,), 0.5, device="dtorch")
        x = torch.tanh(torch.relu(x.mul(2.0).add(1.0).cos()))
        for _ in range(3):
            x = (x * 0.5 + 1).sin()
        assert x[0].isfinite().item()
        del x
        return torch.dtorch.max_memory_allocated() - before

    first = [peak() for _ in range(2)]
    for _ in range(3):
        peak()
    settle()
    peak()
    assert peak() < 0.75 * first[1]
