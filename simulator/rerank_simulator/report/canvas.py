"""From a drawing function to an inline SVG that follows the page's colours, or to a picture file."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rerank_engine.errors import InputError, MissingExtraError, RerankError
from rerank_engine.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]
"""Puts a drawing on an empty figure."""

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#d0d7de", "#ffffff"
MODEL, SERVER, GOOD = "#0969da", "#8c959f", "#1a7f37"
"""Colours of a drawing on white paper. In a page each becomes the CSS variable of its name, see :data:`VARIABLES`."""

VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", MODEL: "model", SERVER: "server", GOOD: "good"}
"""Colour to the name of its CSS variable."""

_DOTS_PER_INCH = 150
_SVG = "{http://www.w3.org/2000/svg}"


def inline_svg(draw: Draw, size_in: tuple[float, float], name: str, label: str) -> str:
    """Draw into an ``<svg>`` element to be put into an HTML page: no namespaces, no fixed size, no fonts of its own.

    Parameters
    ----------
    draw
        Fills the figure; it uses the colours of this module only.
    size_in
        Width and height in inches.
    name
        Keeps the ids of several drawings on one page apart.
    label
        What the drawing shows, for those who cannot see it.

    Returns
    -------
    str
        The element; equal for equal drawings.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.

    Examples
    --------
    >>> text = inline_svg(lambda figure: None, (1, 2), "empty", "nothing & no one")
    >>> text[:75]
    '<svg viewBox="0 0 72 144" role="img" aria-label="nothing &amp; no one"><g><'
    """
    buffer = io.StringIO()
    with _figure(size_in, {"svg.fonttype": "none", "svg.hashsalt": name}) as figure:
        draw(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    used = set(re.findall(r"#([\w.-]+)", buffer.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (_SVG + "metadata", _SVG + "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        if "style" in attributes:
            attributes["style"] = _page_style(attributes["style"])
        element.attrib.clear()
        element.attrib.update(attributes)
        # Line breaks between elements are matplotlib's indentation, text never holds any.
        element.tail = None
        if element.tag != "text":
            element.text = None
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": label})
    for empty in [defs for defs in root.findall("defs") if not len(defs)]:
        root.remove(empty)
    return ElementTree.tostring(root, encoding="unicode")


def save_picture(draw: Draw, size_in: tuple[float, float], path: Path) -> None:
    """Draw into a picture file on white paper; equal drawings give equal bytes.

    Parameters
    ----------
    draw
        Fills the figure.
    size_in
        Width and height in inches.
    path
        Ends in ``.png`` or ``.svg``. It is never seen half written.

    Raises
    ------
    InputError
        The path has another ending.
    MissingExtraError
        matplotlib is not installed.
    RerankError
        The file cannot be written.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg"):
        raise InputError(f"a picture is a .png or an .svg file, got {path.name!r}: choose one of these endings")
    buffer = io.BytesIO()
    with _figure(size_in, {"svg.fonttype": "path", "svg.hashsalt": "picture"}) as figure:
        draw(figure)
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        options: dict[str, Any] = {} if kind == "svg" else {"pil_kwargs": {"optimize": True}}
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, facecolor=PAPER, metadata=metadata, **options)
    write_whole(path, buffer.getvalue())


def require_matplotlib() -> None:
    """Raise a :class:`MissingExtraError` where there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("drawing a report", "simulator") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written.

    Raises
    ------
    RerankError
        It cannot be written; what was there before is unchanged.
    """
    try:
        write_atomically(path, [content])
    except OSError as error:
        raise RerankError(f"cannot write {path}: {error.strerror or error}; choose a folder that exists") from error


@contextmanager
def _figure(size_in: tuple[float, float], options: dict[str, Any]) -> Iterator[Figure]:
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    # A dollar sign in a title is no formula.
    common = {"text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 8.5, "text.color": INK}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **common, **options}), warnings.catch_warnings():
        # The font at hand may lack a script; on the page the reader's own fonts are used.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=size_in)


def _page_style(style: str) -> str:
    for colour, variable in VARIABLES.items():
        style = style.replace(colour, f"var(--{variable})")
    return re.sub(r"font-family: [^;]*;? ?", "", style)
