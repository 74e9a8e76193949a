"""``rerank compile``: machine code of a model for a named processor, made here and run elsewhere without a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import print_json, say, size_text


def compile_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", exists=True, dir_okay=False, help="A model file .rrm.")],
    target: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="x86-64-v2, -v3 or -v4, aarch64, ...; may be repeated."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, help="The file to write; by default beside the model."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compile a model file for other processors."""
    from rerank_engine.ready import compile_ready

    if out is not None and len(target) > 1:
        raise typer.BadParameter("one file holds code for one target: leave --out out, or give one --target")
    made = []
    for name in target:
        path, image = compile_ready(model, name, out)
        made.append(
            {
                "target": name,
                "out": str(path),
                "bytes": path.stat().st_size,
                "code_bytes": len(image.code),
                "compile_ms": image.meta["compile_ms"],
            }
        )
    if json:
        print_json({"model": str(model), "images": made})
        return
    for one in made:
        say(f"{one['target']}: {one['out']} ({size_text(one['bytes'])}, code {size_text(one['code_bytes'])})")
