"""How the pages become a site: `make docs`. They stay plain Markdown, to be read on a code host as well.

The folder that is read is the whole checkout, so that a link means the same in both places. The order of the pages is
that of docs/README.md: each of its headings is a part of the navigation, each page that is linked under it an entry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "runner"))

from parked.version import __version__  # noqa: E402 - found by the path above

project = "parked"
author = "The parked developers"
copyright = "The parked developers, Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "dashboards/*.md", "bench/README.md"]
exclude_patterns = [".*", "build", "dist", "runner", "exporter", "tests", "deploy"]

myst_heading_anchors = 4  # the anchors that code hosts make
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # JSON with an ellipsis is for people

html_theme = "furo"
pygments_style = "default"  # has colours for what a diff adds and takes away; the theme's own has none
pygments_dark_style = "github-dark"
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_title = f"parked {release}"
html_extra_path = ["index.html"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = html_show_sourcelink = False

CONTENTS = "docs/README"
ENTRY = r"^\| \[[^]]+\]\(([^)#]+)\.md\)"  # the first cell of a row


def navigation(page: str) -> str:
    """Return what `page`, the text of docs/README.md, says of the order, as hidden tables of contents of the README."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    tables = [_table(part.splitlines()[0], re.findall(ENTRY, part, re.MULTILINE)) for part in parts]
    return "\n".join(tables)


def _table(caption: str, entries: list[str]) -> str:
    paths = "\n".join(f"/{entry[3:]}" if entry.startswith("../") else f"/docs/{entry}" for entry in entries)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{paths}\n```\n"


def without_folders(page: str, folder: Path) -> str:
    """Return the text of a page in `folder` with the links to folders as text: the site has pages and files alone."""

    def shown(link: re.Match[str]) -> str:
        return link[1] if (folder / link[2]).is_dir() else link[0]

    return re.sub(r"\[([^]]+)\]\(([^):#\s]+)\)", shown, page)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = without_folders(source[0], (ROOT / name).parent)
    if name == root_doc:
        app.env.note_dependency(str(ROOT / f"{CONTENTS}.md"))
        source[0] += navigation((ROOT / f"{CONTENTS}.md").read_text(encoding="utf-8"))
    if name == CONTENTS:
        source[0] = f"---\norphan: true\n---\n{source[0]}"  # the navigation is made of it, and doesn't list it
    if name == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)
