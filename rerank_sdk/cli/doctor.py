"""``rerank doctor``: is everything here as it should be?"""

from __future__ import annotations

from dataclasses import asdict

import typer

from rerank_sdk.cli.options import BundlePath, JsonFlag
from rerank_sdk.cli.output import print_json, say, show_item

_STYLES = {"ok": "green", "absent": "yellow", "broken": "red"}
_NAME_WIDTH = 19


def doctor(bundle: BundlePath = None, json: JsonFlag = False) -> None:
    """Check the installation and this machine."""
    from rerank_sdk.cli.checks import BROKEN, run_checks

    checks = []
    for check in run_checks(bundle):
        checks.append(check)
        if not json:
            head = f"{check.status:8}{check.name:{_NAME_WIDTH}}"
            show_item(head, f"{check.found}; {check.advice}", style=_STYLES[check.status])
    broken = [check.name for check in checks if check.status == BROKEN]
    if json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        say(f"broken: {', '.join(broken)}" if broken else "everything works")
    if broken:
        raise typer.Exit(1)
