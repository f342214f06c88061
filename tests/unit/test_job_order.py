"""What a job's processes find in their environment."""

from __future__ import annotations

import pytest

from testbed.runner.exec.launch_spec import MASTER_PORT, LaunchSpec, ProcessSlot, variables


def slot(node_rank: int, local_rank: int = 0) -> ProcessSlot:
    nodes = ("server", "worker-0", "worker-1")
    return ProcessSlot(nodes, node_rank, local_rank, f"10.0.0.{node_rank + 1}", "10.0.0.1", "data")


def test_every_process_has_a_rank_of_its_own() -> None:
    spec = LaunchSpec(("python", "train.py"), processes=2)
    slots = [slot(node, local) for node in range(3) for local in range(spec.started)]
    found = [variables(spec, each, "/marks", 1) for each in slots]
    assert [int(env["RANK"]) for env in found] == list(range(6))
    assert [int(env["LOCAL_RANK"]) for env in found] == [0, 1] * 3
    assert [int(env["NODE_RANK"]) for env in found] == [0, 0, 1, 1, 2, 2]
    assert {env["WORLD_SIZE"] for env in found} == {"6"}
    assert {env["LOCAL_WORLD_SIZE"] for env in found} == {"2"}
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found} == {
        ("10.0.0.1", str(MASTER_PORT))
    }


def test_open_mpi_and_pytorch_are_told_the_same() -> None:
    env = variables(LaunchSpec(("./a.out",), processes=2), slot(2, 1), "/marks", 1)
    same = {"RANK": "RANK", "SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK"}
    for mpi, ours in {**same, "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}.items():
        assert env[f"OMPI_COMM_WORLD_{mpi}"] == env[ours]
    assert env["RANK"] == "5"


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "train.py"),
        ("/opt/env/bin/torchrun", "train.py"),
        ("python", "-m", "torch.distributed.run", "train.py"),
    ],
)
def test_torchrun_starts_a_nodes_processes_itself(command: tuple[str, ...]) -> None:
    spec = LaunchSpec(command, processes=4)
    assert spec.started == 1
    env = variables(spec, slot(1), "/marks", 1)
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"], env["PET_NODE_RANK"]) == ("3", "4", "1")
    assert env["PET_MASTER_ADDR"] == "10.0.0.1"
    assert env["WORLD_SIZE"] == "12"


@pytest.mark.parametrize("command", [("python", "torchrun.py"), ("python", "-m", "torch"), ("sh",)])
def test_other_commands_are_started_for_every_process(command: tuple[str, ...]) -> None:
    spec = LaunchSpec(command, processes=4)
    assert spec.started == 4
    assert not any(name.startswith("PET_") for name in variables(spec, slot(0), "/marks", 1))


def test_libraries_are_bound_to_the_shaped_interface() -> None:
    env = variables(LaunchSpec(("sh",)), slot(1), "/marks", 3)
    for library in ("GLOO", "TP", "NCCL"):
        assert env[f"{library}_SOCKET_IFNAME"] == "data" == env["NARROWS_INTERFACE"]
    assert env["NCCL_HOSTID"] == env["NARROWS_NODE"] == "worker-0"
    assert env["NCCL_P2P_DISABLE"] == env["NCCL_SHM_DISABLE"] == "1"
    beside = variables(LaunchSpec(("sh",), processes=2), slot(1), "/marks", 3)
    assert not {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"} & beside.keys(), "within a node they may"
    assert env["NARROWS_ADDRESS"] == "10.0.0.2"
    assert env["OMP_NUM_THREADS"] == "3"


def test_variables_of_the_users_own_have_the_last_word() -> None:
    spec = LaunchSpec(("sh",), environment=(("OMP_NUM_THREADS", "8"), ("DATA", "a=b")))
    env = variables(spec, slot(0), "/marks", 1)
    assert (env["OMP_NUM_THREADS"], env["DATA"]) == ("8", "a=b")


@pytest.mark.parametrize("command", [("python", "train.py"), ("torchrun", "train.py")])
def test_all_processes_share_the_processors(command: tuple[str, ...]) -> None:
    spec = LaunchSpec(command, processes=4)
    assert [spec.threads(64, 4), spec.threads(2, 4), spec.threads(40, 2)] == [4, 1, 5]
