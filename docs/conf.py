"""The documentation site. `make docs` builds it in build/docs, without network.

Sphinx, because it resolves typed signatures and cross-references by itself and searches without a server. MyST
reads Markdown, furo brings dark mode and narrow screens. Mathematics become MathML, which browsers render
without a script. Pages that follow from the code (API, commands, settings, methods, papers) are written to
docs/reference/generated before a build and are not committed.
"""

import os
import re
from importlib import import_module
from inspect import isfunction, ismodule
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import nearfar as nf

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "reference" / "generated"

project, author, copyright = "nearfar", "nearfar contributors", "nearfar contributors, Apache-2.0"
version = release = nf.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are committed with their outputs; tests run them
exclude_patterns = ["build"]
nitpicky = False
default_role = "code"
html_theme, html_title = "furo", f"nearfar {nf.__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
html_math_renderer = "mathml"
html_show_search_summary = False  # it would fetch pages, which browsers refuse for files without a server
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
maximum_signature_line_length = 88
copybutton_prompt_text = "$ "

# title of an API page: the modules whose public names it lists
API = {
    "Training": ["nearfar.train.pretrain", "nearfar.train.distill", "nearfar.train.hooks", "nearfar.train.loggers", "nearfar.simclrv2.run", "nearfar.sweeps.run"],
    "Runs, evaluation, export": ["nearfar.run.trained", "nearfar.run.teachers", "nearfar.evaluate", "nearfar.evaluate.knn", "nearfar.detect.run", "nearfar.exported.hub", "nearfar.exported.write", "nearfar.report"],
    "Losses": ["nearfar.losses"],
    "Methods and scores": ["nearfar.core.method", "nearfar.core.types", "nearfar.core.scores", "nearfar.core.encoding", "nearfar.core.schedules"],
    "Bounds": ["nearfar.parts.bounds"],
    "Selections": ["nearfar.parts.selections"],
    "Negatives": ["nearfar.parts.negatives"],
    "Critics and priors": ["nearfar.parts.critics", "nearfar.parts.priors"],
    "Encoders and views": ["nearfar.parts.encoders", "nearfar.modalities.image.views"],
    "Information": ["nearfar.estimate"],
    "Data": ["nearfar.data", "nearfar.modalities"],
    "Base classes": ["nearfar.core.abstract", "nearfar.core.strategy"],
}  # fmt: skip


# pages of the repository outside docs/ that are part of the site
ROOT_PAGES = {
    "examples/README.md": "examples",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CHANGELOG.md": "changes",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")

# --------------------------------------------------------------------------------------- generated pages


def write_generated() -> None:
    """Writes docs/reference/generated from the code."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for source, name in ROOT_PAGES.items():
        page = ROOT / source
        (GENERATED / f"{name}.md").write_text(with_links_from(GENERATED, page, page.read_text("utf-8")))
    for name, text in {"methods": methods(), "papers": papers()}.items():
        (GENERATED / f"{name}.md").write_text(with_links_from(GENERATED, ROOT / "docs" / f"{name}.md", text))
    (GENERATED / "commands.md").write_text(commands())
    (GENERATED / "settings.md").write_text(settings())
    for title, modules in (API | {"More": remaining_modules()}).items():
        (GENERATED / f"{page_name(title)}.md").write_text(api_page(title, modules))


def with_links_from(folder: Path, page: Path, text: str) -> str:
    """The text of `page` with its links as they are written from `folder`; root pages at their place in the
    site."""

    def target(match: "re.Match[str]") -> str:
        path = (page.parent / match[1]).resolve()
        name = ROOT_PAGES.get(os.path.relpath(path, ROOT))
        return os.path.relpath(GENERATED / f"{name}.md" if name else path, folder)

    return LINK.sub(target, text)


def page_name(title: str) -> str:
    return "api-" + re.sub(r"\W+", "-", title.lower())


def remaining_modules() -> list[str]:
    listed = {module for modules in API.values() for module in modules}
    return sorted(set(nf._MODULE_OF.values()) - listed)


def api_page(title: str, modules: list[str]) -> str:
    lines = [f"# {title}", ""]
    for module in modules:
        for name in public_names(module):
            lines += ["```{eval-rst}", directive(module, name), "```", ""]
    return "\n".join(lines)


def public_names(module: str) -> list[str]:
    if module == "nearfar.losses":
        return list(import_module(module).__all__)
    return sorted(name for name, home in nf._MODULE_OF.items() if home == module)


def directive(module: str, name: str) -> str:
    value = getattr(import_module(module), name)
    if ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:"
    if isfunction(value):
        return f".. autofunction:: {module}.{name}"
    # `forward` of losses may be that of a shared base
    calls = "inherited-members: Module" if module == "nearfar.losses" else "special-members: __call__"
    return f".. autoclass:: {module}.{name}\n   :members:\n   :{calls}"


def methods() -> str:
    from nearfar.config.methods_page import CompleteRecipe, methods_page
    from nearfar.config.recipes import RECIPES

    return methods_page({name: CompleteRecipe.of(name) for name in RECIPES})


def papers() -> str:
    from nearfar.studies.mapped import page

    return page()


def commands() -> str:
    from nearfar.cli import COMMANDS, _parser

    parser = _parser()
    lines = ["# Commands", "", "```text", parser.format_help().rstrip(), "```"]
    (subparsers,) = (action for action in parser._actions if action.choices)
    for name in COMMANDS:
        help_text = subparsers.choices[name].format_help()  # type: ignore[index]
        lines += ["", f"## nearfar {name}", "", "```text", help_text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def settings() -> str:
    from nearfar.config.fields import CHOICES, FIELDS

    lines = [
        "# Settings",
        "",
        "Write them as `key=value` on the command line, as YAML in `--config`, or as keyword arguments in Python.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for name, field in FIELDS.items():
        lines.append(f"| `{name}` | {field.default_text()} | {field.description.replace('|', '/')} |")
    lines += [
        "",
        "## Settings of parts",
        "",
        f"The choices of a method are {', '.join(CHOICES)}. `bound=NAME` chooses a part, `bound.KEY=VALUE` sets it.",
        "`temperature` is `critic.temperature`. A number can be a schedule: `encoders.momentum='cosine(0.99,1)'`.",
        "[Methods: reference](methods.md#parts) lists the parts with their settings.",
    ]
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------------------- docstrings


ARGUMENTS = re.compile(r"^((?:\w+, )*\w+): (?=\S)")


def as_markup(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text. An indented block after an empty line is an equation or a table. A paragraph
    with lines `name: text` and indented continuations is a list of arguments."""
    result: list[str] = []
    for paragraph in re.split(r"\n(?=\s*\n)", "\n".join(lines)):
        block = paragraph.strip("\n").split("\n")
        if block[0].startswith("    "):
            result += ["::", "", *block, ""]
            continue
        escaped = [line.replace("*", "\\*").replace("|", "\\|") for line in block]
        if ARGUMENTS.match(block[0]) and any(line.startswith("    ") for line in block):
            escaped = [ARGUMENTS.sub(r"* `\1`: ", line) for line in escaped]
            escaped = [line if line.startswith("*") else f"  {line.strip()}" for line in escaped]
        result += [*escaped, ""]
    lines[:] = result


def show_calls(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """`forward` and `__call__` are shown for their shapes, also where the class describes what they do.
    `__call__` of torch's modules has none."""
    if name == "__call__" and obj.__module__.startswith("torch."):
        return True
    return False if name in ("forward", "__call__") else None


def shapes(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """`Float[Tensor, 'anchor dim']` instead of a module path."""
    short = lambda text: re.sub(r"\b(?:jaxtyping|torch(?:\.nn)?(?:\.\w+)?|collections\.abc|nearfar(?:\.\w+)+)\.(?=[A-Z])", "", text)  # fmt: skip
    return (signature and short(signature)), (returns and short(returns))


# ------------------------------------------------------------------------------------------- mathematics


def visit_math(translator: Any, node: nodes.Element) -> None:
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def link_root_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    page = ROOT / "docs" / f"{docname}.md"
    if page.is_file() and GENERATED not in page.parents:
        source[0] = with_links_from(page.parent, page, source[0])


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("autodoc-process-docstring", as_markup)
    app.connect("autodoc-process-signature", shapes)
    app.connect("autodoc-skip-member", show_calls)
    app.connect("source-read", link_root_pages)
    app.connect("builder-inited", lambda app: write_generated())
