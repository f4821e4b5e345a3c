import torch
from repeated import count, rewritten


def test_what_nobody_reads_is_taken_out():
    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        for _ in range(4):
            unread = (x * 3).sin()
            x = x + 1
            del unread
        return x

    stages, _ = rewritten(program)
    assert count(stages["program"], "aten::sin") == 4
    names = ("sin", "mul.Tensor", "add.Tensor")
    left = {name: count(stages["dead_nodes"], f"aten::{name}") for name in names}
    assert left == {"sin": 0, "mul.Tensor": 0, "add.Tensor": 4}


def test_what_is_read_has_an_effect_or_could_fail_stays():
    def program(device, step):
        x = torch.full((4, 4), 2.0 + step, device=device)
        y = torch.zeros(4, device=device)
        for _ in range(3):
            written = y.view(2, 2)
            written.add_(1)  # an effect on y
            del written
            inverse = torch.linalg.inv(x + torch.eye(4, device=device))  # could be singular
            del inverse
            x = x + 1
        return x, y

    stages, _ = rewritten(program)
    for name in ("aten::add_.Tensor", "aten::linalg_inv_ex"):
        assert count(stages["dead_nodes"], name) == count(stages["program"], name) > 0
