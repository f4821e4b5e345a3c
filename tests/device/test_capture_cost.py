"""What an operator costs on a cache hit: no Python, no wait, no read."""

import sys
import threading

import torch
from torch import nn

import dtorch_mpi as dt

REPEATS = 1000


def python_calls_while(body):
    """Names of the Python functions that run, in any thread, while `body` does."""
    calls = []

    def note(frame, event, argument):
        # A C function called by the body itself (torch.add) is not Python run for it.
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        body()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [call for call in calls if call != (__file__, body.__name__)]


def operators_of(body):
    before = dt.debug.counters()
    body()
    dt.sync()
    after = dt.debug.counters()
    return after["operators"] - before["operators"], after["misses"] - before["misses"]


def test_no_python_runs_for_an_operator():
    x = torch.randn(8, 8, device="dtorch")
    bias = torch.randn(8, device="dtorch")
    index = torch.tensor([0, 2], device="dtorch")
    add, addmm, relu, cat = torch.add, torch.addmm, torch.relu, torch.cat

    def body():
        y = x
        for _ in range(REPEATS // 10):
            y = add(y, bias)
            y = addmm(bias, y, x)
            y = relu(y)
            y = cat([y[:4], y[4:]])
            y = y.t()
            y.mul_(0.5)
            y = y.index_select(0, index).expand(4, 2, 8).reshape(8, 8) * 2.0

    body()
    before = dt.debug.counters()["operators"]
    calls = python_calls_while(body)
    assert dt.debug.counters()["operators"] - before >= REPEATS
    assert calls == []
    assert operators_of(body)[1] == 0


def test_no_python_runs_for_forward_and_backward():
    weight = torch.randn(8, 8, device="dtorch", requires_grad=True)
    bias = torch.zeros(8, device="dtorch", requires_grad=True)
    x = torch.randn(8, 8, device="dtorch")
    gain = torch.ones(8, device="dtorch", requires_grad=True)
    linear, gelu, layer_norm = torch._C._nn.linear, torch._C._nn.gelu, torch.layer_norm
    run = torch.autograd.Variable._execution_engine.run_backward
    one = torch.ones((), device="dtorch")

    def body():
        for _ in range(REPEATS // 10):
            y = layer_norm(gelu(linear(x, weight, bias)), (8,), gain)
            loss = y.log_softmax(-1).sum()
            run((loss,), (one,), False, False, (), True, True)

    body()
    weight.grad = bias.grad = gain.grad = None
    body()
    before = dt.debug.counters()["operators"]
    calls = python_calls_while(body)
    assert dt.debug.counters()["operators"] - before >= REPEATS
    assert calls == []


def test_no_python_runs_for_foreach_operators():
    tensors = [torch.ones(3, 3, device="dtorch"), torch.ones(5, device="dtorch")]
    add, lerp = torch._foreach_add_, torch._foreach_lerp_

    def body():
        for i in range(REPEATS // 2):
            add(tensors, tensors, alpha=1e-3 * i)
            lerp(tensors, tensors, 0.5)

    body()
    assert python_calls_while(body) == []
    assert operators_of(body) == (REPEATS, 0)


def test_factories_and_random_numbers_do_not_miss():
    def body():
        for _ in range(50):
            torch.zeros(4, 4, device="dtorch")
            torch.randn(4, 4, device="dtorch")
            torch.full((3,), 2.0, device="dtorch")
            torch.ones(4, device="dtorch").bernoulli_(0.5)

    body()
    assert operators_of(body)[1] == 0


def test_a_training_step_is_issued_without_waiting():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(16, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
        nn.Linear(8, 16),
    ).to("dtorch")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(16, (2, 6)).to("dtorch")

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    step()
    before = dt.debug.counters()
    step()
    after = dt.debug.counters()
    assert after["reads"] == before["reads"]
    assert after["misses"] == before["misses"]
    assert after["uploads"] == before["uploads"]


def test_every_issued_operator_is_executed():
    x = torch.ones(4, device="dtorch")
    dt.sync()
    for _ in range(REPEATS):
        x = x * 1.0
    dt.sync()
    counters = dt.debug.counters()
    while counters["records_executed"] < counters["records_issued"]:
        counters = dt.debug.counters()
    assert x.tolist() == [1, 1, 1, 1]
