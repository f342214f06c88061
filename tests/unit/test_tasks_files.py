"""MNIST and CIFAR from their standard files: small ones in the true format."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from testbed.errors import InputError, MachineError
from testbed.scenario.model import Train
from testbed.training.data import open_task
from testbed.training.tasks import base
from testbed.training.tasks.base import DataFiles, Download
from testbed.training.tasks.datasets import Cifar10, Cifar100, Mnist

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


class Server:
    """Serves a folder on loopback; ``asked``: the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []

        class Handler(SimpleHTTPRequestHandler):
            def log_message(handler, *_: object) -> None:  # noqa: N805
                self.asked.append(handler.path)

        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def small_files(folder: Path, task: type[Mnist | Cifar10]) -> DataFiles:
    """The description of a task's files for small ones in the true format, whose downloads are
    put into ``folder``."""
    folder.mkdir()
    label = bytes(getattr(task, "label_bytes", 0))
    if task is Mnist:
        mnist_files(folder / "own")
    else:
        (folder / "own").mkdir()
        for name in task.files.sums:
            (folder / "own" / name).write_bytes(label + name.encode().ljust(3072))
    own = {path.name: path.read_bytes() for path in (folder / "own").iterdir()}
    for download in task.files.downloads:
        if download.name.endswith(".tar.gz"):
            with tarfile.open(folder / download.name, "w:gz") as archive:
                archive.add(folder / "own", task.files.folders[0])
        else:
            packed = gzip.compress(own[download.name.removesuffix(".gz")])
            (folder / download.name).write_bytes(packed)
    return replace(
        task.files,
        servers=(),
        downloads=tuple(
            Download(each.name, len(raw), sha256(raw).hexdigest())
            for each in task.files.downloads
            for raw in ((folder / each.name).read_bytes(),)
        ),
        sums={name: sha256(own[name]).hexdigest() for name in task.files.sums},
    )


SETS = pytest.mark.parametrize("task", [Mnist, Cifar10, Cifar100])


@SETS
def test_files_are_fetched_checked_and_read(tmp_path: Path, task: type[Mnist | Cifar10]) -> None:
    files, data = small_files(tmp_path / "served", task), tmp_path / "data"
    assert files.missing(data) == list(task.files.sums)
    with Server(tmp_path / "served") as server:
        files.fetch(data, [server.url])
        wanted = [f"/{download.name}" for download in files.downloads]
        assert server.asked == wanted
        files.fetch(data, [server.url])
        assert server.asked == wanted, "nothing is fetched twice"
    assert files.missing(data) == []
    for x, y in (task(data).train_set(), task(data).test_set()):
        assert len(x) == len(y) > 0


@SETS
def test_a_download_that_is_there_needs_no_network(
    tmp_path: Path, task: type[Mnist | Cifar10]
) -> None:
    files, data = small_files(tmp_path / "served", task), tmp_path / "data"
    data.mkdir()
    for download in files.downloads:
        shutil.copy(tmp_path / "served" / download.name, data)
    files.fetch(data)
    assert files.missing(data) == []
    assert len(task(data).train_set()[1]) > 0


def test_of_several_files_the_missing_ones_are_fetched(tmp_path: Path) -> None:
    files, data = small_files(tmp_path / "served", Mnist), tmp_path / "data"
    with Server(tmp_path / "served") as server:
        files.fetch(data, [server.url])
        (data / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
        del server.asked[:]
        files.fetch(data, [server.url])
        assert server.asked == ["/t10k-labels-idx1-ubyte.gz"]


def test_what_a_server_has_instead_is_not_kept(tmp_path: Path) -> None:
    files, data = small_files(tmp_path / "served", Cifar10), tmp_path / "data"
    (other := tmp_path / "other").mkdir()
    (other / "cifar-10-binary.tar.gz").write_bytes(b"an error in a page of HTML")
    with Server(other) as false, Server(tmp_path / "served") as true:
        with pytest.raises(MachineError, match="what came has the sha256"):
            files.fetch(data, [false.url])
        assert not data.exists()
        files.fetch(data, [false.url, f"{true.url}nowhere/", true.url])
    assert files.missing(data) == []


def test_a_file_that_is_there_and_another_is_named(tmp_path: Path) -> None:
    files, data = small_files(tmp_path / "served", Cifar10), tmp_path / "data"
    data.mkdir()
    archive = data / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"torn")
    with pytest.raises(InputError, match=r"cifar-10-binary.tar.gz is not a file.*its sha256 is"):
        files.fetch(data)
    shutil.copy(tmp_path / "served" / archive.name, data)
    files.fetch(data)
    part = data / "cifar-10-batches-bin/data_batch_3.bin"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"data_batch_3.bin is not a file.*its sha256 is"):
        files.fetch(data)


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", "data", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_network_the_verb_says_which_files_it_wants(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    done = verb("fetch", "cifar100", "--data", str(tmp_path), "--from", url)
    assert done.returncode == 3
    assert f"{url}/cifar-100-binary.tar.gz: " in done.stderr and "refused" in done.stderr
    (download,) = Cifar100.files.downloads
    assert f"Put into {tmp_path}, and call this again: cifar-100-binary.tar.gz" in done.stderr
    assert f"168,513,733 bytes, sha256 {download.sha256}" in done.stderr
    listed = verb("list", "--data", str(tmp_path)).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["cifar10", "cifar100", "mnist"]
    assert "cifar100   168.5 MB  missing: train.bin, test.bin" in listed


def test_the_verb_refuses_small_files_in_place_of_the_true_ones(tmp_path: Path) -> None:
    mnist_files(tmp_path / "MNIST/raw")
    done = verb("fetch", "mnist", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "train-images-idx3-ubyte is not a file of its data set: its sha256 is" in done.stderr
    assert verb("fetch", "digits").returncode == 2
    (row,) = [
        each
        for each in json.loads(verb("list", "--data", str(tmp_path), "--json").stdout)
        if each["task"] == "mnist"
    ]
    assert row["bytes"] == 11_594_722 and "its sha256 is" in row["state"]


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
