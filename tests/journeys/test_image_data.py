"""Images are read as their archives hold them."""

import dataclasses
import hashlib
import io
import tarfile

import numpy as np
import pytest

from streaming_gp import datasets
from streaming_gp.errors import InvalidDataError


@pytest.mark.data
def test_images_and_partitions(mnist):
    data = mnist
    assert data.X.shape == (60_000, 784)
    assert data.X_test.shape == (10_000, 784)
    assert data.X.min() == 0.0
    assert data.X.max() == 1.0
    np.testing.assert_array_equal(np.bincount(data.Y[:, 0].astype(int))[:2], [5923, 6742])
    shards = datasets.partition_by_label(data.X, data.Y, 10)
    assert [np.unique(Y).tolist() for _, Y in shards] == [[k] for k in range(10)]


def cifar_archive(folder, images):
    """An archive as CIFAR-10's, with the rows [N, 3073] dealt out to its six parts."""
    path = folder / "cifar-10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir(parents=True)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    with tarfile.open(path, "w:gz") as archive:
        for name, rows in zip(names, np.split(images, 6), strict=True):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.nbytes
            archive.addfile(member, io.BytesIO(rows.tobytes()))
    return path


def test_photographs_are_read_from_the_parts_of_their_archive(nowhere, rng, monkeypatch):
    images = rng.integers(0, 256, (12, 3073), dtype=np.uint8)
    path = cifar_archive(nowhere, images)
    with pytest.raises(InvalidDataError, match=r"binary.tar.gz has sha256 .*, wanted c4a38c50"):
        datasets.load_cifar10(nowhere)
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    held = dataclasses.replace(datasets.images.CIFAR10, checksum=own)
    monkeypatch.setattr(datasets.images, "CIFAR10", held)
    data = datasets.load_cifar10(nowhere)
    np.testing.assert_array_equal(data.Y[:, 0], images[:10, 0])
    np.testing.assert_allclose(255.0 * data.X_test, images[10:, 1:], rtol=1e-6)
    with pytest.raises(InvalidDataError, match=r"holds no other\.bin of CIFAR-10"):
        datasets.images.read_cifar(path, "other.bin")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidDataError, match="holds no test_batch"):
        datasets.images.read_cifar(path, "test_batch.bin")


@pytest.mark.parametrize("raw", [b"", b"\x00\x00\x09\x01", b"\x00\x00\x08\x01\x00\x00\x00\x05abc"])
def test_an_idx_file_that_is_none_is_refused(tmp_path, raw):
    (tmp_path / "labels").write_bytes(raw)
    with pytest.raises(InvalidDataError, match="labels"):
        datasets.images.read_idx(tmp_path / "labels")


def test_characters_are_read_from_their_arrays(nowhere, rng, monkeypatch):
    folder = nowhere / "kuzushiji-49"
    folder.mkdir(parents=True)
    arrays = [
        rng.integers(0, 256, (9, 28, 28), dtype=np.uint8), np.arange(9, dtype=np.uint8),
        rng.integers(0, 256, (2, 28, 28), dtype=np.uint8), np.array([48, 3], np.uint8),
    ]  # fmt: skip
    held = {}
    for stem, array in zip(datasets.images.KUZUSHIJI, arrays, strict=True):
        path = folder / f"{stem}.npz"
        np.savez(path, array)
        held[stem] = "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidDataError, match=r"imgs.npz has md5 .*, wanted 7ac088b2"):
        datasets.load_kuzushiji49(nowhere)
    monkeypatch.setattr(datasets.images, "KUZUSHIJI", held)
    data = datasets.load_kuzushiji49(nowhere)
    np.testing.assert_allclose(255.0 * data.X, arrays[0].reshape(9, 784), rtol=1e-6)
    np.testing.assert_array_equal(data.Y_test[:, 0], [48, 3])
    np.savez(path, np.ones(2))
    with pytest.raises(InvalidDataError, match="holds float64, wanted bytes"):
        datasets.images.read_npz(path)
    path.write_bytes(b"PK")
    with pytest.raises(InvalidDataError, match="holds no array"):
        datasets.images.read_npz(path)
