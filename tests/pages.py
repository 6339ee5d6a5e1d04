"""The page of `export --to web`, for node."""

from importlib.resources import files

from gatedrnn.export.web import PAGE


def copy_page(folder):
    """The page's own files as modules that node imports, into a folder, which is returned."""
    for name in PAGE:
        (folder / name).write_bytes((files("gatedrnn.export") / "page" / name).read_bytes())
    (folder / "package.json").write_text('{"type": "module"}')
    return folder
