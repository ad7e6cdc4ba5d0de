"""Sentence lengths of Markdown pages: `python tests/docs/prose.py README.md docs/*.md`.

Code, tables, headings, links' targets and mathematics do not count. A list item is a sentence of its own.
"""

import re
import statistics
import sys
from pathlib import Path

LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.) ", re.MULTILINE)
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|et al|Eq|Fig|Thm|Cor|Def|App|sec|Sec|ch|vs|cf|approx|No)\.")


def prose(markdown: str) -> str:
    """The sentences of a page, without code, tables, headings and markup."""
    text = re.sub(r"^(```|~~~).*?^\1", "\n\n", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(?:    .*|\s*\|.*|#.*|:::.*|---+)$", "", text, flags=re.MULTILINE)
    text = LIST_ITEM.sub("\n\n", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\$[^$\n]+\$", "x", text)
    return ABBREVIATION.sub(lambda match: match[0].replace(".", ""), text)


def sentence_lengths(markdown: str) -> list[int]:
    """Words per sentence. A sentence ends at a full stop, question mark, exclamation mark or paragraph."""
    sentences = [
        sentence
        for paragraph in re.split(r"\n\s*\n", prose(markdown))
        for sentence in re.split(r"(?<=[.!?])[)\"*]*\s+", " ".join(paragraph.split()))
    ]
    lengths = [len(re.findall(r"\w[\w'’.,/%+-]*", sentence)) for sentence in sentences]
    return [length for length in lengths if length > 1]


def percentile(lengths: list[int], share: float) -> int:
    return sorted(lengths)[min(len(lengths) - 1, int(share * len(lengths)))]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        lengths = sentence_lengths(Path(name).read_text())
        if lengths:
            print(
                f"{name}: {len(lengths)} sentences, mean {statistics.mean(lengths):.1f}, "
                f"p90 {percentile(lengths, 0.9)}, longest {max(lengths)}"
            )
