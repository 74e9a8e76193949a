"""The command line as a whole: light, documented, strict, and quiet about its insides."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rerank_engine.errors import RerankError
from rerank_sdk import __version__
from rerank_sdk.cli import app
from rerank_sdk.cli import output as cli_output

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = (
    "demo",
    "train",
    "convert",
    "compile",
    "tune",
    "verify",
    "inspect",
    "run",
    "events import",
    "events export",
    "events mapping",
    "replay",
    "features check",
    "features schema",
    "features explain",
    "triggers check",
    "triggers replay",
    "store verify",
    "store backup",
    "store prune",
    "store stats",
    "bench loop",
    "bench onnx-nodes",
    "bench engine",
    "bench features",
    "doctor",
)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below, by the words that call it."""
    yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{name} {word}")


def documented() -> dict[str, set[str]]:
    """Options of each section of the page, taken from the first cells of its tables."""
    sections: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"##+ `(rerank [a-z -]+)`", line):
            current = sections.setdefault(heading.group(1), set())
        elif line.startswith("| `--"):
            current.add(re.match(r"\| `(--[a-z-]+)", line).group(1))  # type: ignore[union-attr]
    return sections


def declared() -> dict[str, set[str]]:
    found = {}
    for name, command in walk(typer.main.get_command(app), "rerank"):
        options = {text for option in command.params for text in option.opts if text.startswith("--")}
        found[name] = options - {"--help", "--version"}
    return found


def test_there_are_the_commands_that_were_promised() -> None:
    groups = {"rerank", "bench", "events", "features", "store", "triggers"}
    assert {name.removeprefix("rerank ") for name in declared()} == groups | set(COMMANDS)


def test_every_command_and_option_is_documented_and_nothing_else_is() -> None:
    found = declared()
    assert found.pop("rerank") == set()
    assert documented() == found
    assert "`rerank --version`" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_help(command: str) -> None:
    assert "--json" in declared()[f"rerank {command}"]
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout


def test_help_names_every_command_in_full() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(re.search(rf"^  {command.split()[0]} ", result.stdout, re.MULTILINE) for command in COMMANDS)
    assert "..." not in result.stdout.split("Commands:")[1]


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = ["numpy", "numba", "llvmlite", "torch", "onnx", "matplotlib", "pydantic", "sqlite_utils", "rich"]
    upward = ["rerank_models", "rerank_simulator", "rerank_features"]
    code = f"import sys, rerank_sdk.cli; print([name for name in {heavy + upward} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_in_a_process_of_its_own() -> None:
    code = (
        "import sys\nfrom rerank_sdk.cli import app\n"
        "try:\n    app(['--help'])\n"
        "finally:\n    sys.stderr.write(str(sorted({'numpy', 'torch', 'onnx', 'matplotlib'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
    assert done.stderr == "[]"


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "frobnicate",
        "bench",
        "bench frobnicate",
        "demo --colour",
        "demo --picture demo.gif",
        "train --out x.rrb",
        "train --model lstm --out x.rrb",
        "train --model mlp --out x.rrb --epochs 0",
        "train --model mlp --out x.rrb --seed -1",
        "train --model mlp --out x.rrb --learning-rate 0",
        "train --model mlp --out x.rrb --learning-rate nan",
        "train --model mlp --out x.rrb --weight-decay -1",
        "train --model mlp --out x.rrb --weight-decay inf",
        "train --model mlp --out x.rrb --dropout 1",
        "convert missing.onnx --out x.rrm",
        "convert",
        "inspect missing.rrm",
        "run",
        "run --state s --bundle missing.rrb",
        "run --state s --deadline-ms 0",
        "replay --policy clairvoyant",
        "doctor --bundle missing.rrb",
        "doctor extra",
        "bench features --kill-rounds -1",
    ],
)
def test_a_wrong_call_is_refused_before_anything_happens(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "damaged.rrb"
    path.write_bytes(b"PK\x03\x04 no archive")
    return path


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_error_is_one_line_on_stderr(damaged: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RERANK_DEBUG", raising=False)
    result = CliRunner().invoke(app, ["inspect", str(damaged), *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"error: cannot read bundle {damaged}: ")
    assert "\x1b" not in result.stderr


def test_the_traceback_is_shown_when_asked_for(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_DEBUG", "1")
    result = CliRunner().invoke(app, ["inspect", str(damaged)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: cannot read bundle")


@pytest.mark.parametrize(
    ("error", "shown"), [(RerankError("a\n b"), "error: a b"), (PermissionError("no"), "error: no")]
)
def test_errors_of_ours_and_of_the_system_are_told(
    error: Exception, shown: str, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("rerank_sdk.cli.inspect.kind_of", fail)
    result = CliRunner().invoke(app, ["inspect", str(damaged)])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{shown}\n")


def test_a_fault_of_the_program_is_not_hidden(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("rerank_sdk.cli.inspect.kind_of", fail)
    assert isinstance(CliRunner().invoke(app, ["inspect", str(damaged)]).exception, ZeroDivisionError)


class Terminal:
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return stream


def use_everything_on(stream: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in a fixture: the runner puts its own streams in place between a fixture and its test.
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    use_everything()


def use_everything() -> None:
    cli_output.show_error("went wrong")
    cli_output.say("a heading", style="bold")
    cli_output.show_facts({"name": "value"})
    table = cli_output.make_table("column")
    table.add_row("[red]cell[/red]")
    cli_output.show_table(table)
    with cli_output.progress() as report:
        report(1, 2, "working")


def test_a_terminal_gets_colours_and_a_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    use_everything_on(terminal, monkeypatch)
    assert "\x1b[31m" in terminal.text
    assert "working" in terminal.text
    assert "[red]cell[/red]" in terminal.text


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_escape_codes_when_unwanted(
    variable: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    use_everything_on(terminal, monkeypatch)
    assert "\x1b" not in terminal.text
    assert "working" not in terminal.text
    assert "error: went wrong\n" in terminal.text


def test_forced_colours_do_not_reach_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    use_everything()
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert all(line == line.rstrip() for line in captured.out.splitlines())


def test_long_paths_stay_whole_and_texts_wrap(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/folder" * 20
    cli_output.show_facts([("file", path), ("text", "word " * 40)])
    cli_output.say(f"written to {path}")
    lines = capsys.readouterr().out.splitlines()
    assert f"file  {path}" in lines
    assert path in lines
    assert all(len(line) <= 80 for line in lines if path not in line)


def test_json_is_strict_and_ascii() -> None:
    text = cli_output.json_text({"loss": float("inf"), "title": "Amélie", "path": Path("a")})
    assert text.isascii()
    assert json.loads(text) == {"loss": None, "title": "Amélie", "path": "a"}


def test_a_console_without_the_characters_still_prints() -> None:
    code = (
        "from rerank_sdk.cli.application import prepare\n"
        "from rerank_sdk.cli.output import make_table, show_table\n"
        "prepare()\n"
        "table = make_table('Am\\xe9lie \\u2192 1')\n"
        "table.add_row('cell')\n"
        "show_table(table)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout.splitlines()[1] == b"Am?lie ? 1"
    assert done.stdout.isascii()
