"""What `mkdocs build` does besides: pages of docs/ link to files of the repository beside that folder, and the site must
have these, too; and Doxygen writes the reference of the headers (tools/site/Doxyfile)."""

import re
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

root = Path(__file__).resolve().parents[2]

# Files beside docs/ that are pages of the site.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".c": "c", ".py": "python"}
# What Doxygen may miss: members whose names say all, or which one comment covers together with others. Classes, functions
# beside them, enumerations and macros have a comment each, and no comment says what Doxygen does not understand.
TOLERATED = re.compile(
    r"Member .* (\((variable|typedef|friend)\) of |\(function\) of (class|struct) ).* is not documented"
)
LINK = re.compile(r"\]\(((?:\.\./)*)([^)#:\s]+)(#[^)\s]*)?\)")


def repository_path(page: str, up: str, target: str) -> str:
    """The path in the repository of a link on a page, which is named as in the repository."""
    path = (root / page).parent / (up + target)
    return str(path.resolve().relative_to(root))


def on_config(config):
    # A page that another branch adds is left out until it is there.
    for section in config.nav:
        for pages in section.values():
            pages[:] = [
                page
                for page in pages
                for name in ([page] if isinstance(page, str) else page.values())
                if (root / "docs" / name).exists() or name in PAGES.values()
            ]
    return config


def on_files(files, config):
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(root / source).read_text()))
    linked = set()
    for file in list(files.documentation_pages()):
        page = repository_name(file.src_uri)
        for up, target, _ in LINK.findall(file.content_string):
            path = repository_path(page, up, target)
            if not path.startswith("docs/") and path not in PAGES and path != "README.md":
                linked.add(path)
    for path in sorted(linked):
        if not (root / path).is_file():
            raise PluginError(f"a page links to {path}, which is no file")
        text = (root / path).read_text()
        language = LANGUAGES.get(Path(path).suffix, "text")
        page = f"# {Path(path).name}\n\n`{path}`\n\n```{language}\n{text}```\n"
        files.append(File.generated(config, f"source/{path}.md", content=page))
    return files


def repository_name(uri: str) -> str:
    for source, name in PAGES.items():
        if uri == name:
            return source
    return "docs/" + uri


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def replace(match):
        up, target, anchor = match.groups()
        path = repository_path(repository_name(here), up, target)
        if path == "README.md":  # whose place the site's first page has
            path, anchor = "docs/index.md", None
        uri = PAGES.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"
        )
        return f"]({'../' * here.count('/')}{uri}{anchor or ''})"

    # Not within code.
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.DOTALL)
    markdown = "".join(part if i % 2 else LINK.sub(replace, part) for i, part in enumerate(parts))
    if here == "api.md":
        markdown += (
            '\n<a class="md-button md-button--primary" href="api/index.html">'
            "Reference of the headers</a>\n"
        )
    return markdown


def on_post_build(config):
    result = subprocess.run(
        ["doxygen", "tools/site/Doxyfile"], cwd=root, capture_output=True, text=True
    )
    found = [line for line in result.stderr.splitlines() if line and not TOLERATED.search(line)]
    if result.returncode != 0 or found:
        raise PluginError("Doxygen has found faults in the headers:\n" + "\n".join(found))
