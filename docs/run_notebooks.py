"""Runs every notebook and writes it with its outputs: python docs/run_notebooks.py OUT."""

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
