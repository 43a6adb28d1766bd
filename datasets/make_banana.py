"""Rewrites datasets/banana.csv from the banana data in the PyPI package river 0.26.1.

    pip download --no-deps river==0.26.1
    python datasets/make_banana.py river-0.26.1-*.whl

The row lists of the training and test split are kept as they are: they define the split.
"""

import io
import sys
import zipfile
from pathlib import Path


def labelled_points(wheel: str) -> list[tuple[str, str, int]]:
    """(x1, x2, label) for each line of the package's libsvm file; label −1 becomes 0."""
    with zipfile.ZipFile(wheel) as package:
        inner = zipfile.ZipFile(io.BytesIO(package.read("river/datasets/banana.zip")))
    points = []
    for line in inner.read("banana.all.txt").decode().splitlines():
        if line.strip():
            label, x1, x2 = line.split()
            points.append((x1.split(":")[1], x2.split(":")[1], int(float(label) > 0)))
    return points


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rows = [f"{x1},{x2},{label}" for x1, x2, label in labelled_points(sys.argv[1])]
    target = Path(__file__).parent / "banana.csv"
    target.write_text("\n".join(["x1,x2,label", *rows]) + "\n")


if __name__ == "__main__":
    main()
