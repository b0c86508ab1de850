"""The notebooks, executed, give what is committed."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = [*sorted((ROOT / "python/notebooks").glob("*.ipynb")), ROOT / "examples/tour.ipynb"]
PICTURES = ["image/png", "image/svg+xml"]


def outputs(notebook, kind):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output.data[kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(path, tmp_path):
    shown = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(run, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert any(outputs(shown, kind) and outputs(run, kind) for kind in PICTURES), "a plot is shown"
    # The model runs in f32, and sums of another processor may differ in the last place. Tables are rounded.
    tables = outputs(shown, "text/html")
    assert tables and outputs(run, "text/html") == tables


def test_progress_is_a_widget_in_a_notebook():
    cell = nbformat.v4.new_code_cell("import waggle\nwaggle.demo(tokens=2, progress=True)['text']")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    assert outputs(notebook, "application/vnd.jupyter.widget-view+json")
