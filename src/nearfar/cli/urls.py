"""URLs in files: only the command line may name one."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import UserError

ALLOW_URLS = "also open URLs in a run's config.yaml or in --config (default: only URLs on the command line)"


def check_urls(config: Mapping[str, Any], path: Path | None, words: Sequence[str], allowed: bool) -> None:
    """Stops at a URL in a file of settings that no word repeats, as DATA or key=URL."""
    from nearfar.data.remote import is_url

    typed = {text for word in words for text in (word, word.partition("=")[2])}
    for key, text in () if allowed else _texts(config):
        if is_url(text) and text not in typed:
            raise UserError(
                f"--config {path}: {key} names the URL {text!r}, which the command line does not; repeat it "
                "there, or add --allow-urls"
            )


def _texts(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in nested settings, with its dotted key."""
    if isinstance(tree, str):
        yield key, tree
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _texts(value, key)
