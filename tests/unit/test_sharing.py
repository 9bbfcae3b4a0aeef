"""Which GPU a rank takes: one each where there are enough, the least taken one otherwise, by names
and not numbers.
"""

import os
from types import SimpleNamespace

import pytest
import torch

from hpcfed.core.errors import ConfigError
from hpcfed.machine import device_choice, devices, gpu_sharing
from hpcfed.machine.gpu_sharing import check_sharing, gpu_name, sharers, take, visible
from tests.contract.toy import job
from tests.threads import spmd

A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"


def on_one_node(*gpus: list[str]) -> dict:
    return {rank: (0, names) for rank, names in enumerate(gpus)}


@pytest.mark.parametrize(("ranks", "gpus"), [(1, 4), (4, 4), (5, 2), (8, 3)])
def test_if_all_ranks_see_the_same_gpus_a_rank_takes_local_rank_modulo_gpus(ranks, gpus):
    visible = {
        rank: (rank % 2, [f"GPU-{rank % 2}{i}" for i in range(gpus)]) for rank in range(2 * ranks)
    }
    assert take(visible) == {rank: rank // 2 % gpus for rank in range(2 * ranks)}


def test_with_gpus_per_task_each_rank_sees_one_gpu_and_takes_number_0():
    ranks = on_one_node([A], [B], [C], [D])
    assert take(ranks) == dict.fromkeys(range(4), 0)
    assert sharers(ranks) == {rank: [rank] for rank in range(4)}


def test_two_ranks_that_see_one_and_the_same_gpu_as_number_0_share_it():
    assert sharers(on_one_node([A], [A], [B])) == {0: [0, 1], 1: [0, 1], 2: [2]}


def test_ranks_with_masks_of_their_own_leave_no_gpu_idle():
    ranks = on_one_node([A, B], [C, D], [A, B], [C, D])
    assert take(ranks) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert take(on_one_node([A, B], [B, A])) == {0: 0, 1: 0}  # each the first of its own order


def test_equal_names_on_two_nodes_are_two_gpus():
    assert sharers({0: (0, ["0"]), 1: (1, ["0"])}) == {0: [0], 1: [1]}


def test_a_rank_without_a_gpu_takes_none_and_shares_none():
    ranks = on_one_node([A], [])
    assert take(ranks) == {0: 0}
    assert sharers(ranks) == {0: [0], 1: []}


def test_ranks_that_share_unasked_are_warned_of_with_a_hint_at_mps():
    text = check_sharing(sharers(on_one_node([A], [A])), None)
    assert (
        "ranks 0, 1 share one GPU" in text
        and "run.ranks_per_gpu = 2" in text
        and "nvidia-cuda-mps-control" in text
    )
    assert (
        check_sharing(sharers(on_one_node([A], [A])), 2)
        == check_sharing(sharers(on_one_node([A], [B])), None)
        == ""
    )


def test_more_ranks_on_a_gpu_than_are_allowed_are_refused():
    with pytest.raises(
        ConfigError, match=r"run.ranks_per_gpu = 2, but ranks 0, 1, 2 would share one GPU"
    ):
        check_sharing(sharers(on_one_node([A], [A], [A])), 2)


def test_a_gpu_has_its_uuid_as_name_and_a_part_of_one_that_in_the_mask():
    assert gpu_name(1, ["3", "5"], "GPU-x") == "GPU-x"
    assert gpu_name(0, ["MIG-7", "MIG-8"], "GPU-x") == "MIG-7"
    assert gpu_name(1, ["3", "5"], "") == "5"
    assert gpu_name(1, [""], "") == "1"


def test_the_names_are_those_of_the_gpus_that_torch_sees(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=f"GPU-{i}")
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert visible("auto") == ["GPU-0", "GPU-1"]
    assert visible("cpu") == []


def test_tests_compute_on_the_cpu_on_any_machine():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and torch.cuda.device_count() == 0
    assert visible("auto") == []


def test_on_a_gpu_the_workspace_of_matrix_products_is_fixed_unless_the_user_has_set_it(monkeypatch):
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, "")  # so that it is restored after the test
    monkeypatch.delenv(name)
    for owner, function in (
        (torch.cuda, "set_device"),
        (torch, "set_deterministic_debug_mode"),
        (torch, "set_num_threads"),
    ):
        monkeypatch.setattr(owner, function, lambda *_, **__: None)
    devices.prepare(torch.device("cpu"), 1)
    assert name not in os.environ
    devices.prepare(torch.device("cuda", 1), 1)
    assert os.environ[name] == ":4096:8"
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    monkeypatch.setenv(name, ":16:8")
    devices.prepare(torch.device("cuda", 1), 1)
    assert os.environ[name] == ":16:8"


def test_a_job_that_wants_a_gpu_is_refused_where_there_is_none():
    assert devices.choose("auto", None) == torch.device("cpu")
    assert devices.choose("auto", 3) == torch.device("cuda", 3)
    with pytest.raises(ConfigError, match=r"run.device = 'cuda', but torch sees no GPU"):
        devices.choose("cuda", None)


def test_all_ranks_agree_on_devices_and_shares(monkeypatch):
    monkeypatch.setattr(gpu_sharing, "visible", lambda wanted: [A, B])
    monkeypatch.setattr(devices, "prepare", lambda *_: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=16e9)
    )
    capped = []
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda part, device: capped.append((part, device.index)),
    )
    seats = spmd(
        6,
        lambda comm: device_choice.choose_device(job("fedavg", "--models.mix", "mlp"), comm),
        nodes=2,
    )
    # ranks of two nodes: one has ranks 0, 2, 4 or 0, 1, 2, each with two GPUs
    assert sorted(s.device.index for s in seats) == [0, 0, 0, 0, 1, 1]
    assert sorted(s.share for s in seats) == [8e9] * 4 + [16e9] * 2
    # half of the GPU without a context for each of two ranks; a rank that is alone has all of it
    assert capped == 4 * [((8e9 - devices.CONTEXT) / 16e9, 0)]
    assert all("share one GPU" in s.warning for s in seats)
    with pytest.raises(ConfigError, match="ranks_per_gpu = 1"):
        spmd(
            6,
            lambda comm: device_choice.choose_device(
                job("fedavg", "--models.mix", "mlp", "--run.ranks_per_gpu", "1"), comm
            ),
            nodes=2,
        )
