"""A transformer's training step on workers, by layout: what is gathered, and the losses."""

import pytest
import torch
import torch.nn.functional as F
from test_gpt_training import BATCH, GPT, LENGTH, VOCABULARY, tensor_parallel

import dtorch_mpi as dt

R, S0 = dt.Replicate(), dt.Shard(0)


def cut_vocabulary(name):
    return S0 if name in ("tokens.weight", "head.weight") else tensor_parallel(name)


LAYOUTS = {
    "data": lambda name: [R, R],
    "tensor": lambda name: [R, tensor_parallel(name)],
    "vocabulary": lambda name: [R, cut_vocabulary(name)],
    "fully_sharded": lambda name: [S0, R],
    "fully_sharded_tensor": lambda name: [S0, cut_vocabulary(name)],
}
# An axis that cuts the batch and the weights too has each weight brought together for its use.
USING_WEIGHTS = {
    "aten::addmm", "aten::mm", "aten::native_layer_norm", "aten::native_layer_norm_backward",
}


def losses(model, place):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    found = []
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        x, y = place(tokens[:, :-1].contiguous()), place(tokens[:, 1:].contiguous())
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach().cpu())
    return torch.stack(found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_weights_cut_like_the_batch_are_gathered(mesh, layout):
    torch.manual_seed(0)
    plain = GPT()
    model = GPT()
    model.load_state_dict(plain.state_dict())
    expected = losses(plain, lambda tokens: tokens)
    before = {(operator, given): times for operator, given, times in dt.debug.fallbacks()}
    model = model.to("dtorch")
    plan = {name: LAYOUTS[layout](name) for name, _ in model.named_parameters()}
    dt.distribute_module(model, mesh, plan)
    found = losses(model, lambda tokens: dt.distribute_tensor(tokens, mesh, [S0, R]))
    torch.testing.assert_close(found, expected)
    gathering = {
        operator for operator, given, times in dt.debug.fallbacks()
        if before.get((operator, given)) != times
    }
    assert gathering <= (USING_WEIGHTS if layout.startswith("fully") else set())
