"""Looks at every page of the site with a browser, without a window: python3 look.py [SITE]

Each page of build/site (of the reference of the headers: those that begin it, and of the classes) is opened in Chromium. It
must have a heading, text, and a way to all pages of its own part, and its scripts must tell of no error.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """What a reader sees of a page: its heading, its words, where it leads."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.heading = ""
        self.words = 0
        self.links: set[str] = set()
        self._open: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "script", "style", "title"):
            self._open.append(tag)
        href = dict(attributes).get("href")
        if tag == "a" and href:
            self.links.add(href.split("#")[0])

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            return
        if "h1" in self._open:
            self.heading += data
        if "title" in self._open:
            self.heading = self.heading or data  # Doxygen's pages have no h1
        self.words += len(data.split())


def look(browser: str, page: Path) -> tuple[Page, list[str]]:
    with tempfile.TemporaryDirectory() as profile:
        shown = subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
             page.resolve().as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    # A page from the file system may not fetch the index of the search, which wants a server.
    told = [line for line in re.findall(r"CONSOLE[^\n]*", shown.stderr) if not re.search("search|worker", line, re.I)]
    return Page(shown.stdout), told


def main() -> None:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium here: apt install chromium")
    own = sorted(one for one in site.rglob("*.html") if one.parts[len(site.parts)] != "api" and one.name != "404.html")
    reference = [site / "api" / "index.html", *sorted((site / "api").glob("classperdure_1_1*.html"))]
    reference = [one for one in reference if one.exists() and not one.name.endswith("-members.html")]
    if not own or len(reference) < 2:
        sys.exit(f"{site} has no pages: make docs")
    faults: list[str] = []
    with ThreadPoolExecutor(2) as several:
        for page, (seen, told) in zip(own + reference, several.map(lambda one: look(browser, one), own + reference)):
            name = page.relative_to(site)
            faults += [f"{name}: {line}" for line in told]
            if not seen.heading.strip() or seen.words < 50:
                faults.append(f"{name}: has the heading {seen.heading.strip()!r} and {seen.words} words")
            if name.parts[0] == "structures":
                here = {one.name for one in own if one.parent == page.parent}
                missing = here - {Path(link).name for link in seen.links} - {page.name}
                faults += [f"{name}: no way to {one}" for one in sorted(missing)]
    print("\n".join(faults) or f"{len(own)} pages, and {len(reference)} of the reference: all are there")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
