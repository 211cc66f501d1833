"""Text that others wrote, made safe for where it is shown: nothing in a name is markup."""

from __future__ import annotations

import html
import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|~<>$:^=&\"'])")
_ADDRESS = re.compile(r"(?i)(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=\S)(?=@)")
"""Where an address, of a page or of mail, is cut by a character without width: Markdown makes links of them, escaped or
not."""
_MOST = 300
"""Letters of a name or reason that are shown."""


def plain(text: object) -> str:
    """The text for a place that reads Markdown: headings, captions, labels, warnings."""
    return _MARKDOWN.sub(r"\\\1", _ADDRESS.sub("\u2060", shortened(text)))


def hover(text: object) -> str:
    """The text for a chart, where Plotly reads a little HTML."""
    return html.escape(shortened(text), quote=False)


def shortened(text: object, most: int = _MOST) -> str:
    """One line of at most so many letters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
