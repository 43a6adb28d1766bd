"""Images as rows of numbers: MNIST, Fashion-MNIST, Kuzushiji-49 and CIFAR-10."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import numpy as np

from streaming_gp.datasets.files import File, Split, content, find
from streaming_gp.errors import InvalidDataError

_MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
# Checksum: that which others hold the authors' archive to; see datasets/README.md.
CIFAR10 = File(
    "cifar-10/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)
_CIFAR_ROW = 1 + 3 * 32 * 32

# Only md5 sums are published; see datasets/README.md.
_KUZUSHIJI_ADDRESS = "http://codh.rois.ac.jp/kmnist/dataset/k49/"
KUZUSHIJI = {
    "k49-train-imgs": "md5:7ac088b20481cf51dcd01ceaab89d821",
    "k49-train-labels": "md5:44a8e1b893f81e63ff38d73cad420f7a",
    "k49-test-imgs": "md5:d352e201d846ce6b94f42c990966f374",
    "k49-test-labels": "md5:4da6f7a62e67a832d5eb1bd85c5ee448",
}


def load_mnist(folder: str | Path | None = None, download: bool = True) -> Split:
    """Handwritten digits (LeCun et al. 1998): X [60000, 784] in [0, 1], Y [60000, 1] from 0 to 9.

    :param folder: The folder to look in first.
    :param download: Whether the data may be fetched.
    :returns: float32; 10,000 test images.
    :raises DataNotFoundError: if the data are nowhere.
    :raises InvalidDataError: if a file holds something else.
    """
    paths = _find("mnist", _MNIST_ADDRESS, _MNIST, ".gz", folder, download)
    return _split(*map(read_idx, paths))


def load_fashion_mnist(folder: str | Path | None = None, download: bool = True) -> Split:
    """Articles of clothing (Xiao, Rasul & Vollgraf 2017), shaped as MNIST; see ``load_mnist``."""
    paths = _find("fashion-mnist", _FASHION_ADDRESS, _FASHION, ".gz", folder, download)
    return _split(*map(read_idx, paths))


def load_kuzushiji49(folder: str | Path | None = None, download: bool = True) -> Split:
    """Cursive Japanese characters (Clanuwat et al. 2018): X [232365, 784] in [0, 1], Y [232365, 1]
    from 0 to 48, 38,547 test images. As ``load_mnist`` otherwise.
    """
    paths = _find("kuzushiji-49", _KUZUSHIJI_ADDRESS, KUZUSHIJI, ".npz", folder, download)
    return _split(*map(read_npz, paths))


def read_npz(path: Path) -> np.ndarray:
    """The one array of bytes in an npz file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            pixels: np.ndarray = arrays["arr_0"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidDataError(f"{path} holds no array arr_0: {error}") from error
    if pixels.dtype != np.uint8:
        raise InvalidDataError(f"{path} holds {pixels.dtype}, wanted bytes")
    return pixels


def load_cifar10(folder: str | Path | None = None, download: bool = True) -> Split:
    """Small photographs (Krizhevsky 2009): X [50000, 3072] in [0, 1], the red, the green and the
    blue of all pixels one after another; Y [50000, 1] from 0 to 9. As ``load_mnist`` otherwise.
    """
    path = find(CIFAR10, folder, download)
    train = [read_cifar(path, f"data_batch_{number}.bin") for number in range(1, 6)]
    rows, test = np.concatenate(train), read_cifar(path, "test_batch.bin")
    return _split(rows[:, 1:], rows[:, 0], test[:, 1:], test[:, 0])


def read_cifar(path: Path, name: str) -> np.ndarray:
    """Label and pixels of each image of one part of the archive: [N, 3073], bytes."""
    try:
        with tarfile.open(path) as archive:
            part = archive.extractfile(f"cifar-10-batches-bin/{name}")
            raw = b"" if part is None else part.read()
        return np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_ROW)
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
        raise InvalidDataError(f"{path} holds no {name} of CIFAR-10: {error}") from error


def read_idx(path: Path) -> np.ndarray:
    """Bytes of an idx file, in the shape that its head gives."""
    raw = content(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise InvalidDataError(f"{path} is no idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4).astype(int)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    if values.size != np.prod(shape):
        raise InvalidDataError(f"{path} holds {values.size} bytes, wanted {list(shape)}")
    return values.reshape(shape)


def _find(
    name: str,
    address: str,
    checksums: dict[str, str],
    suffix: str,
    folder: str | Path | None,
    download: bool,
) -> list[Path]:
    """The files of one data set, of these names with this suffix."""
    paths = []
    for stem, checksum in checksums.items():
        file = File(f"{name}/{stem}{suffix}", checksum, url=f"{address}{stem}{suffix}")
        paths.append(find(file, folder, download))
    return paths


def _split(*arrays: np.ndarray) -> Split:
    """Training images and labels, and those of the test set, from their bytes."""
    X, X_test = ((images.reshape(len(images), -1) / 255.0) for images in arrays[::2])
    Y, Y_test = (labels[:, None] for labels in arrays[1::2])
    return Split(*(values.astype(np.float32) for values in (X, Y, X_test, Y_test)))
