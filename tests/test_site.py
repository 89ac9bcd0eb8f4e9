"""The documentation becomes a site without a warning, offline, and its pages read as well on a code host."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPHINX = Path(sys.prefix) / "docs/bin/python"  # where `make test` has put the tools of the group `docs`
INDEX = (ROOT / "docs/README.md").read_text(encoding="utf-8")
ELSEWHERE = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[^\s)]*)?")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SPHINX.exists():
        assert "CI" not in os.environ, f"no Sphinx at {SPHINX}"
        pytest.skip("the tools of the group `docs` are not installed (make docs does it)")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [SPHINX, "-m", "sphinx", "-b", "html", "-c", "docs/site", "-d", folder / "parts", "--fail-on-warning",
         "--keep-going", "--quiet", ".", folder / "out"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "out"


def entries() -> list[str]:
    """The pages that docs/README.md lists, as paths in the checkout."""
    names = re.findall(r"^\| \[[^]]+\]\(([^)#]+)\)", INDEX, re.MULTILINE)
    return [os.path.normpath(Path("docs") / name) for name in names]


@pytest.mark.slow
def test_the_site_has_every_page_in_the_order_of_the_index(site):
    front = (site / "README.html").read_text(encoding="utf-8")
    tree = front.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    linked = re.findall(r'class="reference internal" href="([^"#]+)\.html"', tree)

    inner = [name for name in linked if not name.startswith("docs/decisions/0")]
    assert inner == [name.removesuffix(".md") for name in entries()]
    for name in linked:
        assert (site / f"{name}.html").exists()


@pytest.mark.slow
def test_links_and_images_of_the_site_stay_in_it(site):
    dead = []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            has_anchors = anchor and target.suffix == ".html"
            if not target.exists() or (has_anchors and f'id="{anchor}"' not in target.read_text(encoding="utf-8")):
                dead.append((page.name, link))

    assert dead == []


@pytest.mark.slow
def test_what_a_diff_adds_and_takes_away_has_a_colour_by_day_and_by_night(site):
    style = (site / "_static/pygments.css").read_text(encoding="utf-8")

    for kind in ("gi", "gd"):
        assert len(re.findall(rf"\.highlight \.{kind} {{[^}}]*\bcolor: #", style)) >= 2
    assert '<span class="gi">+' in (site / "docs/adopt.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_front_page_is_found_where_a_server_looks_for_it(site):
    assert 'content="0; url=README.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_holds_what_only_the_site_would_understand():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dashboards/*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(```|:::)\{|^\s*\{\w+\}`|^---$", text, re.MULTILINE), page


def test_links_to_elsewhere_are_whole_addresses():
    """Nothing fetches them here; `example.com` is for text, not for links."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dashboards/*.md")]:
        for link in re.findall(r"\]\(([a-z]+:[^)\s]*)\)", page.read_text(encoding="utf-8")):
            assert ELSEWHERE.fullmatch(link), (page, link)
            assert "example." not in link, (page, link)


def test_the_page_of_licences_is_what_the_installed_packages_say():
    made = runpy.run_path(str(ROOT / "docs/site/licences.py"))["page"]()

    assert (ROOT / "docs/licences.md").read_text(encoding="utf-8") == made, (
        "make it anew: python docs/site/licences.py > docs/licences.md"
    )
