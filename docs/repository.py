"""A hook of mkdocs: pages for the files of the repository that the documentation links to.

On GitHub, links such as ``../examples/plugin.py`` work by themselves. On the site, such a file has
a page under ``repository/``, outside the search. So have the files that these pages link to.
"""

import re
import tomllib
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
DOCS = Path("docs")
CHANGELOG = Path("CHANGELOG.md")
"""It is a page of the site, and in the search."""
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
BOOSTS = {"recipes.md": 4.0, "api.md": 0.25}
"""In the search, a task comes before the many names of the API."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])[^)#\s]+")
CELL = re.compile(r"<td.*?</td>")
TAB, END = re.compile(r"^\*\*(.+)\*\* <!-- tab -->$", re.M), re.compile(r"^<!-- /tab -->$", re.M)
"""On GitHub, a tab is its bold name and what follows."""


def on_config(config: Any) -> None:
    """Put the version below each page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.copyright = f"{project['name']} {project['version']}, {project['license']}"


def on_files(files: Files, *, config: Any) -> None:
    """Add the pages, and those that they link to."""
    waiting = [CHANGELOG, *(DOCS / file.src_uri for file in files.documentation_pages())]
    files.append(File.generated(config, _uri(CHANGELOG), content=_relinked(CHANGELOG)))
    while waiting:
        source = waiting.pop()
        for link in LINK.findall(_markdown(source)):
            path = Path(normpath(source.parent / link))
            uri = _uri(path)
            if DOCS in (path, *path.parents) or uri in files.src_uris or not _exists(path):
                continue
            if path.suffix == ".png":
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
            else:
                files.append(File.generated(config, uri, content=UNSEARCHED + _relinked(path)))
                waiting.append(path)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links out of ``docs`` lead to the pages, make tabs, and weigh a page in the search."""
    page.meta.setdefault("search", {"boost": BOOSTS.get(page.file.src_uri, 1.0)})
    text = markdown if page.file.generated_by else _relinked(DOCS / page.file.src_uri)
    return END.sub("///", TAB.sub(r"/// tab | \1", text))


def on_page_content(html: str, **_: Any) -> str:
    """Show one colon where a docstring has two, and no escapes of bars in the code of tables."""
    cells = CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
    return cells.replace("::</p>", ":</p>")


def _exists(path: Path) -> bool:
    return (ROOT / path).exists()


def _uri(path: Path) -> str:
    """Return where a file of the repository is on the site."""
    if path == CHANGELOG:
        return "changelog.md"
    if DOCS in path.parents:
        return str(path.relative_to(DOCS))
    return f"repository/{path}" + ("" if path.suffix in (".md", ".png") else ".md")


def _markdown(path: Path) -> str:
    """Return a page for a file or folder, with the links as they are in the repository."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file())
        return f"# `{path}`\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# `{path}`\n\n~~~~~~{path.suffix[1:] or 'text'}\n{text}\n~~~~~~\n"


def _relinked(path: Path) -> str:
    """Return a page with its links to files as they are on the site."""

    def relink(match: re.Match[str]) -> str:
        target = Path(normpath(path.parent / match[0]))
        return relpath(_uri(target), Path(_uri(path)).parent) if _exists(target) else match[0]

    return LINK.sub(relink, _markdown(path))
