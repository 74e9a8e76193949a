"""``rerank run``: a re-ranker behind a pipe, JSON lines in and out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rerank_engine.errors import BundleError, StoreError
from rerank_sdk.cli.options import BundlePath, positive
from rerank_sdk.cli.output import json_text, note
from rerank_sdk.cli.sources import load_bundle


def run(
    state: Annotated[
        Path, typer.Option("--state", file_okay=False, help="Folder of the event store; made if missing.")
    ],
    bundle: BundlePath = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option(callback=positive, help="Give the server's order back when a list takes longer. Off by default."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Leave out the summary on stderr; stdout is the same.")] = False,
) -> None:
    """Serve a re-ranker on stdin and stdout, by JSON lines."""
    from rerank_sdk.cli.lines import LineServer
    from rerank_sdk.reranker import Reranker

    loaded = load_bundle(bundle)
    with Reranker.open(state, loaded, deadline_ms=deadline_ms) as reranker:
        health = reranker.health()
        if health.problem is not None:
            raise BundleError(f"bundle {loaded.name!r} cannot be used: {health.problem}")
        if not health.store.writable:
            raise StoreError(f"state {state} cannot be written: {health.store.last_error}; give another folder")
        server = LineServer(reranker)
        for number, line in enumerate(typer.get_binary_stream("stdin"), 1):
            answer = server.answer(number, line)
            if answer is not None:
                sys.stdout.write(json_text(answer) + "\n")
                sys.stdout.flush()
    counts = server.counts
    if not json:
        note(f"{counts.events} new events, {counts.requests} lists, {counts.bad} bad lines; state in {state}")
    if counts.bad:
        raise typer.Exit(1)
