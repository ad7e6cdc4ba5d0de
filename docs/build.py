"""Builds the documentation: the pages of docs/ and of the root, and an API reference from the docstrings, as plain HTML.

    python docs/build.py build/docs

Needs Markdown and Jinja2 (the extra `docs`) and no network. Links between pages stay links; a link to any other file of the
repository leads to a copy of it in the site.
"""

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import markdown
from jinja2 import Template

import nearfar as nf

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": ("index.html", "nearfar"),
    "docs/methods.md": ("methods.html", "Methods"),
    "docs/certificates.md": ("certificates.html", "Certificates"),
    "docs/information.md": ("information.html", "Mutual information"),
    "docs/evaluation.md": ("evaluation.html", "Evaluation"),
    "docs/data.md": ("data.html", "Data"),
    "docs/performance.md": ("performance.html", "Performance"),
    "docs/report.md": ("report.html", "The report"),
    "docs/detection.md": ("detection.html", "Detection"),
    "docs/graphs.md": ("graphs.html", "Graphs"),
    "docs/pairs.md": ("pairs.html", "Pairs"),
    "docs/series.md": ("series.html", "Time series"),
    "docs/distillation.md": ("distillation.html", "Distillation"),
    "docs/export.md": ("export.html", "Export"),
    "docs/sweeps.md": ("sweeps.html", "Sweeps"),
    "docs/semi.md": ("semi.html", "Few labels"),
    "docs/studies.md": ("studies.html", "Studies"),
    "docs/papers.md": ("papers.html", "The papers"),
    "docs/architecture.md": ("architecture.html", "Architecture"),
    "docs/extending.md": ("extending.html", "Extending"),
    "docs/scale.md": ("scale.html", "Scale"),
    "docs/reliability.md": ("reliability.html", "Reliability"),
    "docs/references.md": ("references.html", "References"),
    "examples/README.md": ("examples.html", "Examples"),
    "CONTRIBUTING.md": ("contributing.html", "Contributing"),
    "CHANGELOG.md": ("changelog.html", "Changes"),
    "SECURITY.md": ("security.html", "Security"),
}
# the sections of the reference: a title, and where its names are
REFERENCE = {
    "Training and runs": ["nearfar.train.pretrain", "nearfar.train.distill", "nearfar.run.trained", "nearfar.run.teachers", "nearfar.evaluate", "nearfar.sweeps.run", "nearfar.simclrv2.run", "nearfar.report", "nearfar.data"],
    "Losses": ["nearfar.losses"],
    "Methods": ["nearfar.core.method", "nearfar.core.types"],
    "Scores": ["nearfar.core.scores"],
    "Bounds": ["nearfar.parts.bounds"],
    "Selections": ["nearfar.parts.selections"],
    "Negatives": ["nearfar.parts.negatives"],
    "Critics": ["nearfar.parts.critics"],
    "Encoders": ["nearfar.parts.encoders"],
    "Priors": ["nearfar.parts.priors"],
    "Views": ["nearfar.modalities.image.views"],
    "Schedules": ["nearfar.core.schedules"],
    "Mutual information": ["nearfar.estimate"],
    "Errors": ["nearfar.errors"],
}  # fmt: skip
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
TEMPLATE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882 }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0; display: grid; grid-template-columns: 14rem minmax(0, 1fr) }
nav { padding: 1.5rem; border-right: 1px solid var(--line); min-height: 100vh }
nav a { display: block; padding: .15rem 0; text-decoration: none }
main { padding: 1.5rem 2rem; max-width: 60rem }
pre, table { overflow-x: auto; display: block } pre { background: var(--soft); padding: .8rem; border-radius: 6px }
code { font: .88em ui-monospace, monospace } td, th { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top }
h3 { margin-top: 2.2rem; border-top: 1px solid var(--line); padding-top: 1rem }
@media (max-width: 50rem) { body { display: block } nav { min-height: 0; border: 0 } }
</style></head><body>
<nav>{% for address, name in pages %}<a href="{{ address }}">{{ name }}</a>{% endfor %}</nav>
<main>{{ body }}</main></body></html>
"""
)


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for source, (address, title) in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        linked = LINK.sub(lambda found, at=source: _link(found, at, out), text)  # type: ignore[misc]
        write(out, address, title, html(linked))
    for drawn in (ROOT / "docs").glob("*.svg"):
        shutil.copy(drawn, out)
    write(out, "reference.html", "API reference", html("\n".join(reference())))


def write(out: Path, address: str, title: str, body: str) -> None:
    pages = [*PAGES.values(), ("reference.html", "API reference")]
    page = TEMPLATE.render(title=title, body=body, pages=pages)
    (out / address).write_text(page, encoding="utf-8")


def html(text: str) -> str:
    return markdown.markdown(text, extensions=["tables", "fenced_code", "toc", "sane_lists"])


def _link(found: "re.Match[str]", source: str, out: Path) -> str:
    """A link of a page as a link of the site."""
    text, target = found[1], found[2]
    if re.match(r"\w+:|#", target):
        return found[0]
    file, _, anchor = target.partition("#")
    path = (ROOT / source).parent.joinpath(file).resolve()
    inside = path.relative_to(ROOT).as_posix()
    if inside in PAGES:
        address = PAGES[inside][0]
    else:
        address = f"files/{inside}.txt"
        copy = out / address
        copy.parent.mkdir(parents=True, exist_ok=True)
        # a folder is shown as the list of what is in it
        held = (
            "\n".join(sorted(item.name for item in path.iterdir())).encode()
            if path.is_dir()
            else path.read_bytes()
        )
        copy.write_bytes(held)
    return f"[{text}]({address}{'#' + anchor if anchor else ''})"


def reference() -> Iterator[str]:
    """The API reference as Markdown."""
    yield "# API reference\n\n`import nearfar as nf`: every name below is `nf.NAME`, the losses `nearfar.losses.NAME`.\n"
    placed = {module for modules in REFERENCE.values() for module in modules}
    rest = sorted(set(nf._MODULE_OF.values()) - placed)  # what nobody has given a place yet
    for title, modules in {**REFERENCE, "More": rest}.items():
        yield f"\n## {title}\n"
        for module in modules:
            for name in names_of(module):
                yield from described(name, getattr(import_module(module), name))


def names_of(module: str) -> list[str]:
    if module == "nearfar.losses":
        return list(import_module(module).__all__)
    return sorted(name for name, home in nf._MODULE_OF.items() if home == module)


def described(name: str, thing: Any) -> Iterator[str]:
    if inspect.ismodule(thing):
        yield f"\n### {name}\n\n{inspect.getdoc(thing)}\n"
        for own, function in vars(thing).items():
            if inspect.isfunction(function) and function.__module__ == thing.__name__ and own[0] != "_":
                yield from described(f"{name}.{own}", function)
        return
    yield f"\n### {name}\n\n<pre><code>{escape(signature(name, thing))}</code></pre>\n\n{inspect.getdoc(thing) or ''}\n"
    if inspect.isclass(thing):
        for own, method in vars(thing).items():
            function = method.__func__ if isinstance(method, (classmethod, staticmethod)) else method
            if own[0] != "_" and inspect.isfunction(function) and function.__doc__:
                yield f"\n**`{own}{parameters(function)}`** {inspect.getdoc(function)}\n"


def signature(name: str, thing: Any) -> str:
    return f"{name}{parameters(thing)}"


def parameters(thing: Any) -> str:
    """The parameters with their defaults; types only where they are short enough to read."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    return re.sub(r" at 0x[0-9a-f]+", "", str(found.replace(parameters=plain, return_annotation=found.empty)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs"))
