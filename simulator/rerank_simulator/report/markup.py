"""HTML from values: everything that is no :class:`Html` is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Escape a value, unless it is HTML.

    Examples
    --------
    >>> text("<b> & 'c'"), text(Html("<b>d</b>"))
    ('&lt;b&gt; &amp; &#x27;c&#x27;', '<b>d</b>')
    """
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *content: object, css: str | None = None) -> Html:
    """An element.

    Examples
    --------
    >>> tag("p", "a < b", css="note")
    '<p class="note">a &lt; b</p>'
    """
    start = f'<{name} class="{escape(css)}">' if css else f"<{name}>"
    return Html(start + "".join(text(one) for one in content) + f"</{name}>")


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], words: int = 1) -> Html:
    """A table in a frame that scrolls by itself on a narrow screen.

    Parameters
    ----------
    caption
        What it shows.
    head
        Names of the columns.
    rows
        One cell a column.
    words
        So many columns from the left hold words; the others hold figures and are set to the right.

    Examples
    --------
    >>> table("sizes", ["name", "size"], [["a", 5]]).count("figure")
    2
    """
    css = [None if column < words else "figure" for column in range(len(head))]
    header = tag("tr", *(tag("th", name, css=style) for name, style in zip(head, css, strict=True)))
    body = [tag("tr", *(tag("td", cell, css=style) for cell, style in zip(row, css, strict=True))) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", header), tag("tbody", *body))
    return tag("div", whole, css="scroll")
