"""MNIST and CIFAR from their standard files: small ones in the true format."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest
import torch

from testbed.errors import InputError
from testbed.scenario.model import Train
from testbed.training.data import open_task
from testbed.training.tasks import base

torch.set_num_threads(1)


def idx(values: bytes, *shape: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + values


def mnist_files(folder: Path, count: int = 3, *, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        pixels = bytes(n % 256 for n in range(count * 784))
        files = {
            f"{prefix}-images-idx3-ubyte": idx(pixels, count, 28, 28),
            f"{prefix}-labels-idx1-ubyte": idx(bytes(range(count)), count),
        }
        for name, raw in files.items():
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / name).write_bytes(raw)


def opened(name: str, folder: Path):  # type: ignore[no-untyped-def]
    return open_task(Train(task=name, data=str(folder)))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("folder", [".", "MNIST/raw"])
def test_mnist_is_read(tmp_path: Path, zipped: bool, folder: str) -> None:
    mnist_files(tmp_path / folder, zipped=zipped)
    x, y = opened("mnist", tmp_path).train_set()
    assert x.shape == (3, 1, 28, 28)
    assert y.tolist() == [0, 1, 2]
    assert float(x[0, 0, 0, 5]) == pytest.approx((5 / 255 - 0.1307) / 0.3081)
    assert opened("mnist", tmp_path).test_set()[0].dtype == torch.float32


def test_a_missing_file_says_where_to_put_it(tmp_path: Path) -> None:
    mnist_files(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"Put t10k-labels-idx1-ubyte .* into .*"):
        opened("mnist", tmp_path).test_set()


def test_a_missing_directory_says_what_to_set() -> None:
    with pytest.raises(InputError, match=r"Set train\.data to a directory that holds data_batch_1"):
        open_task(Train(task="cifar10")).train_set()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "2351 bytes where 2352 should be"),
        (lambda raw: raw + b"\0", "2353 bytes where 2352 should be"),
        (lambda raw: b"PK" + raw[2:], "does not begin like an idx file"),
        (lambda raw: raw[:7], "does not begin like an idx file"),
        (lambda _: b"", "does not begin like an idx file"),
        (lambda _: idx(b"\0" * 12, 3, 2, 2), r"images of \(2, 2\) pixels"),
        (lambda _: idx(b"\0" * 784, 1, 28, 28), "3 labels, 1 images"),
        (lambda _: idx(b"", 0, 28, 28), "0 bytes where 0 should be"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    mnist_files(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        opened("mnist", tmp_path).train_set()


def test_a_torn_gzip_file_is_refused(tmp_path: Path) -> None:
    mnist_files(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a file of its data set"):
        opened("mnist", tmp_path).train_set()


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    mnist_files(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(bytes((0, 1, 10)), 3))
    with pytest.raises(InputError, match="a label is 10"):
        opened("mnist", tmp_path).train_set()


def test_cifar10_is_read_from_its_binary_version(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for batch in range(1, 6):
        (folder / f"data_batch_{batch}.bin").write_bytes(bytes([batch]) + bytes([255]) * 3072)
    (folder / "test_batch.bin").write_bytes((bytes([9]) + bytes(3072)) * 2)
    x, y = opened("cifar10", tmp_path).train_set()
    assert x.shape == (5, 3, 32, 32)
    assert y.tolist() == [1, 2, 3, 4, 5]
    assert float(x[0, 1, 0, 0]) == pytest.approx((1 - 0.4822) / 0.2435)
    assert opened("cifar10", tmp_path).test_set()[1].tolist() == [9, 9]


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes([3, 99]) + bytes(3072))
    _, y = opened("cifar100", tmp_path).train_set()
    assert y.tolist() == [99]


def test_cifar_files_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(3073))
    with pytest.raises(InputError, match="not a whole number of 3074-byte records"):
        opened("cifar100", tmp_path).train_set()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pipe_is_no_file_of_a_data_set(tmp_path: Path, suffix: str) -> None:
    mnist_files(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.unlink()
    os.mkfifo(f"{path}{suffix}")
    with pytest.raises(InputError, match=r"ubyte.*: this is not a regular file"):
        opened("mnist", tmp_path).train_set()


def test_a_device_is_no_file_of_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "train.bin").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="this is not a regular file"):
        opened("cifar100", tmp_path).train_set()


def test_what_is_too_large_is_not_unpacked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_BYTES", 1 << 20)
    (tmp_path / "train.bin.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(InputError, match="more than 1 MiB unpacked"):
        opened("cifar100", tmp_path).train_set()
    (tmp_path / "train.bin.gz").unlink()
    (tmp_path / "train.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        opened("cifar100", tmp_path).train_set()
