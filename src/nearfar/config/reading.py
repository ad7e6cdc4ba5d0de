"""YAML as settings use it: safe, with numbers as people write them; and durations and sizes with units."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from nearfar.errors import UserError
from nearfar.system.untrusted import MAX_SETTINGS_BYTES, read_text


class _PlainLoader(yaml.SafeLoader):
    """Reads mappings, lists, texts, true, false and null only.

    YAML 1.1 reads 1e-4 as text, 010 as 8 and 1:30 as 90; its dates are no settings; its tags (`!!bool x`)
    construct objects; and ten lines of aliases expand to a billion values. None of these is allowed here.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        forbidden = None
        if self.check_event(yaml.AliasEvent):
            forbidden = "an alias"
        elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag:
            forbidden = "a tag"
        if forbidden is not None:
            raise ComposerError(None, None, f"{forbidden} is not allowed", event.start_mark)
        return super().compose_node(parent, index)


class _QuotedText(str):
    """Text in quotation marks, which is never read as a number."""


def _construct_text(loader: _PlainLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    return text if node.style is None else _QuotedText(text)


_PlainLoader.add_constructor("tag:yaml.org,2002:str", _construct_text)
_ALLOWED_TAGS = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _ALLOWED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# every digit can be matched in one way only, or a long word would take quadratic time
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\.inf|\.nan", re.ASCII)


def load_yaml(text: str) -> Any:
    """The content of YAML text, with numbers as people write them; raises `yaml.YAMLError`."""
    try:
        return numbers(yaml.load(text, _PlainLoader))
    # nesting beyond the recursion limit; "\UFFFFFFFF" is not a character
    except (RecursionError, ValueError, OverflowError) as problem:
        raise yaml.YAMLError(str(problem)) from None


def load_word(text: str) -> Any:
    """The value of a `key=value` word; text that is not YAML stays text."""
    try:
        return load_yaml(text) if text.strip() else ""
    except yaml.YAMLError:
        return text.strip()


def numbers(raw: Any) -> Any:
    """`raw` with every text that is a number (`1e-4`, `.5`, `1_000`) as that number; whole ones as int."""
    if isinstance(raw, Mapping):
        return {
            str(key) if isinstance(key, _QuotedText) else key: numbers(value) for key, value in raw.items()
        }
    if isinstance(raw, (list, tuple)):
        return type(raw)(map(numbers, raw))
    if isinstance(raw, _QuotedText):
        return str(raw)
    if not isinstance(raw, str) or not _NUMBER.fullmatch(raw.strip()):
        return raw
    text = raw.strip()
    try:
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if "." in text or not abs(value) < 2**1023:
            return value
        # 1e3 is a whole number; 1e99 as one would have digits that were not written
        integral = value.is_integer() and abs(value) < 2**63
        return int(text) if "e" not in text.lower() else int(value) if integral else value
    except ValueError:  # such as more digits than Python converts
        return raw


class _PlainDumper(yaml.SafeDumper):
    """Writes text that would be read as a number in quotation marks."""


def _represent_text(dumper: _PlainDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if numbers(text) is not text else None)


_PlainDumper.add_representer(str, _represent_text)


def dump_yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=_PlainDumper, sort_keys=False)


def load_file(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file of `--config` holds."""
    try:
        content = load_yaml(read_text(path, MAX_SETTINGS_BYTES))
    except UnicodeDecodeError:
        raise UserError(f"--config {path} cannot be read: not text") from None
    except OSError as problem:
        raise UserError(f"--config {path} cannot be read: {problem.strerror}") from None
    except yaml.MarkedYAMLError as problem:
        line = f" at line {problem.problem_mark.line + 1}" if problem.problem_mark else ""
        raise UserError(f"--config {path} is not plain YAML{line}") from None
    except yaml.YAMLError:
        raise UserError(f"--config {path} is not plain YAML") from None
    if not isinstance(content, Mapping):
        raise UserError(f"--config {path} holds no mapping of settings; expected lines such as epochs: 50")
    return {str(key): value for key, value in content.items()}


def leading_words(words: Sequence[str], count: int) -> list[str]:
    """The first words, at most `count`, up to the first key=value that is not a file."""
    leading: list[str] = []
    for word in words:
        if len(leading) == count or ("=" in word and not Path(word).exists()):
            break
        leading.append(word)
    return leading


def seconds(text: str) -> float:
    """`90`, `90s`, `15m` or `2h` in seconds."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match:
        raise UserError(f"max_time was {text!r}; expected a number of seconds, or 30s, 90m, 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


BYTE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def memory_bytes(text: str) -> int:
    """`2GB`, `800MB`, `1.5GiB` or a number, in bytes."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if not match:
        raise UserError(f"memory was {text!r}; expected a number of bytes, or 800MB, 2GB")
    unit = BYTE_UNITS[match[2].upper()]
    return int(float(match[1]) * (unit if not match[3] else 1024 ** (len(str(unit)) // 3)))


def in_units(count: int) -> str:
    """Bytes as people write them: `2 GB`."""
    for unit in ("T", "G", "M", "K"):
        if abs(count) >= BYTE_UNITS[unit]:
            return f"{count / BYTE_UNITS[unit]:.3g} {unit}B"
    return f"{count} B"
