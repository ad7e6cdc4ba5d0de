"""The pages of the documentation and their fenced blocks."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "generated"
]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
# pages of the repository that the site shows or that GitHub does
PROJECT = [
    ROOT / name
    for name in (
        *("AGENTS.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
        "examples/README.md",
    )
]
SHELL = ("", "sh", "bash", "console")

_BLOCK = re.compile(
    r"^(?P<fence>```|~~~)(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"<!-- not run: (?P<reason>.+) -->\n+\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block. `reason`: why it is not run, from the comment above it; empty if it is run."""

    language: str
    code: str
    reason: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block without prompts; continued lines are joined."""
        lines = self.code.replace("\\\n", " ").splitlines()
        if self.language == "console" or any(line.startswith("$ ") for line in lines):
            lines = [line for line in lines if line.startswith("$ ")]
        return [line.removeprefix("$ ") for line in lines if line.strip()]


def text_of(page: Path) -> str:
    """A page, or the text cells of a notebook."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown") + "\n"


def blocks(page: Path) -> Iterator[Block]:
    text = text_of(page)
    for match in _BLOCK.finditer(text):
        mark = _MARK.search(text[: match.start()])
        yield Block(match["language"].strip(), match["code"], mark["reason"] if mark else "")
