"""Runs every notebook: python docs/run_notebooks.py OUT.

Writes each with its outputs, and its first figure, which is its thumbnail in the documentation.
"""

import base64
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

SOURCES = Path(__file__).parent / "notebooks"


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.py")):
        print(source.stem, flush=True)
        notebook = jupytext.read(source)
        NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
        nbformat.write(notebook, out / f"{source.stem}.ipynb")
        (out / f"{source.stem}.png").write_bytes(first_figure(notebook))


def first_figure(notebook: nbformat.NotebookNode) -> bytes:
    outputs = (one for cell in notebook.cells for one in cell.get("outputs", ()))
    images = (one.data["image/png"] for one in outputs if "image/png" in one.get("data", ()))
    return base64.b64decode(next(images))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
