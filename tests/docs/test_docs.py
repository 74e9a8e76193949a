"""The documentation says what the code does: examples run, tables equal the code, links lead somewhere.

The tables of the engine's operators and sources are in ``test_docs_engine.py``.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from markdown.extensions.toc import slugify  # type: ignore[import-untyped]
from pydantic import BaseModel

import rerank_features.spec as spec_module
import rerank_sdk
import rerank_sdk.exchange.mapping as mapping_module
from rerank_engine import convert, errors, load
from rerank_engine.passes import PASSES
from rerank_engine.verify import verify
from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.events import KINDS
from rerank_features.parts import Transform
from rerank_models.train import TrainOptions
from rerank_models.zoo import ZOO
from rerank_sdk import EventStore, Ranking, Reranker
from rerank_sdk.exchange import FORMATS, EventMapping, ImportReport, import_events
from rerank_sdk.personal import PersonalisationResult, trainer
from rerank_sdk.store import StoreHealth
from rerank_simulator.replay import METRICS
from rerank_simulator.server import ServerConfig

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
PACKAGES = ("rerank_engine", "rerank_features", "rerank_sdk", "rerank_models", "rerank_simulator")
Table = Callable[[str, str], list[list[str]]]
SOURCES = ("engine", "features", "models", "rerank_sdk", "simulator")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)

FRAMEWORKS = ("torch", "sklearn", "lightgbm", "xgboost")
"""Frameworks that ``sources.md`` shows; each takes seconds to import, so its example runs in a test of its own."""

NO_EXAMPLE_NEEDED = {
    "Ranking": "data only: what Reranker.rerank gives back",
    "Reason": "data only: part of a Ranking",
    "RerankError": "an error",
}
"""Public names whose docstring needs no example, each with its reason."""


@pytest.fixture(autouse=True)
def _a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code_cache: Path) -> None:
    """Files that an example writes stay in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RERANK_CACHE_DIR", str(code_cache))


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code of the examples is compiled once a session."""
    return tmp_path_factory.mktemp("machine-code")


# --- reading the pages -------------------------------------------------------------------------------------


def blocks(text: str, language: str) -> Iterator[tuple[int, str]]:
    """Line number and content of each fenced block of a language."""
    for found in FENCE.finditer(text):
        if found["info"].split(" ")[0] == language:
            yield text.count("\n", 0, found.start()) + 1, textwrap.dedent(found["body"])


def prose(text: str) -> str:
    """The page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


# --- examples ----------------------------------------------------------------------------------------------


def framework_of(body: str) -> str | None:
    """The framework that a block imports."""
    found = re.search(rf"^(?:>>> )?(?:import|from) ({'|'.join(FRAMEWORKS)})\b", body, flags=re.MULTILINE)
    return found[1] if found else None


def run_blocks(path: Path, framework: str | None = None) -> tuple[int, str]:
    """Run every Python block of a page in one namespace; the number of blocks, and what failed.

    Blocks that import a framework of models are left out, and run alone when that framework is asked for.
    """
    text = path.read_text(encoding="utf-8")
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    space: dict[str, Any] = {"__name__": "__main__"}
    failures: list[str] = []
    count = 0
    for line, body in blocks(text, "python"):
        if framework_of(body) != framework:
            continue
        count += 1
        if ">>> " in body:
            test = doctest.DocTestParser().get_doctest(body, {}, path.name, str(path), line)
            test.globs = space
            runner.run(test, out=failures.append, clear_globs=False)
        else:
            exec(compile("\n" * line + body, str(path), "exec"), space)
    return count, "".join(failures)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_examples_of_the_page_run(path: Path) -> None:
    _, failures = run_blocks(path)
    assert not failures, failures


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_no_example_escapes_the_tests(path: Path) -> None:
    outside = FENCE.sub("", path.read_text(encoding="utf-8"))
    assert ">>>" not in outside
    assert "```" not in outside
    languages = {found["info"].split(" ")[0] for found in FENCE.finditer(path.read_text(encoding="utf-8"))}
    assert languages <= {"python", "toml", "bash", "text", "json"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_example_with_a_framework_runs(framework: str) -> None:
    count, failures = run_blocks(DOCS / "sources.md", framework)
    assert not failures, failures
    assert count == 1


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_need_neither_network_nor_torch_nor_skips(path: Path) -> None:
    found = [body for _, body in blocks(path.read_text(encoding="utf-8"), "python")]
    assert path.name == "sources.md" or not any(map(framework_of, found))
    code = "\n".join(body for body in found if framework_of(body) is None)
    for forbidden in ("+SKIP", "import torch", "rerank_models.train", "rerank_models.zoo", "load_movielens(", "http"):
        assert forbidden not in code


@pytest.mark.parametrize("path", [path for path in PAGES if path.stem != "cli"], ids=lambda path: path.name)
def test_page_has_a_runnable_example(path: Path) -> None:
    assert list(blocks(path.read_text(encoding="utf-8"), "python"))


def test_a_wrong_example_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\n>>> 1 + 1\n3\n\n```\n")
    assert "Got:\n    2" in run_blocks(page)[1]
    page.write_text("```python\nvalue = 2\n```\n\n```python\n>>> value\n2\n\n```\n")
    assert run_blocks(page) == (2, "")


def test_toml_blocks_are_valid_specs() -> None:
    found = [(path, body) for path in PAGES for _, body in blocks(path.read_text(encoding="utf-8"), "toml")]
    assert {path.stem for path, _ in found} >= {"features", "import-events"}
    for path, body in found:
        assert (EventMapping if path.stem == "import-events" else FeatureSpec).from_toml(body).name


def modules(package: str) -> Iterator[ModuleType]:
    """The package and every module below it, but for generated code."""
    root = importlib.import_module(package)
    yield root
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        if ".generated" not in module.name:
            yield importlib.import_module(module.name)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstring_examples_run(package: str) -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    failures: list[str] = []
    for module in modules(package):
        for test in finder.find(module):
            runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


# --- public names ------------------------------------------------------------------------------------------


def public_names() -> list[tuple[str, str]]:
    """Package and name of everything that a package offers at its top."""
    found = [(package, getattr(importlib.import_module(package), "__all__", [])) for package in PACKAGES]
    return [(package, name) for package, names in found for name in names]


def docstrings(thing: Any) -> Iterator[str]:
    """Docstring of a function, or of a class and its public methods."""
    yield inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        for name, member in vars(thing).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""


@pytest.mark.parametrize(("package", "name"), public_names(), ids="-".join)
def test_public_name_is_documented_with_an_example(package: str, name: str) -> None:
    thing = getattr(importlib.import_module(package), name)
    assert inspect.getdoc(thing)
    if name in NO_EXAMPLE_NEEDED:
        return
    shown = [line for text in docstrings(thing) for line in text.splitlines() if line.startswith(">>> ")]
    assert shown, f"{package}.{name} has no example in its docstring"
    if all("+SKIP" in line for line in shown):
        # Its example needs a file: a page makes that file and runs it.
        pages = "\n".join(body for path in PAGES for _, body in blocks(path.read_text(encoding="utf-8"), "python"))
        assert re.search(rf"\b{name.lower()}\b", pages.lower()), f"no page runs {package}.{name}"


def test_names_without_example_are_what_the_list_says() -> None:
    assert issubclass(rerank_sdk.RerankError, Exception)
    assert is_dataclass(rerank_sdk.Ranking)
    assert is_dataclass(rerank_sdk.Reason)
    assert set(NO_EXAMPLE_NEEDED) <= {name for _, name in public_names()}


# --- tables ------------------------------------------------------------------------------------------------


def options_of(source: Any) -> dict[str, str]:
    """Every option and its default as text: of a pydantic model, a data class, or a function."""
    if inspect.isclass(source) and issubclass(source, BaseModel):
        return {
            name: "required" if field.is_required() else _default_text(field.get_default(call_default_factory=True))
            for name, field in source.model_fields.items()
            if name != "kind" or source in (Event, EventMapping, mapping_module.Rule)
        }
    if is_dataclass(source):
        return {
            field.name: "required" if field.default is MISSING else _default_text(field.default)
            for field in fields(source)
            if not field.name.startswith("_")
        }
    return {
        name: "required" if parameter.default is parameter.empty else _default_text(parameter.default)
        for name, parameter in inspect.signature(source).parameters.items()
    }


def _default_text(value: object) -> str:
    return "empty" if value in ((), {}) or isinstance(value, BaseModel) else repr(value)


OPTION_TABLES: list[tuple[str, str, Any]] = [
    ("events.md", "Event", Event),
    ("events.md", "Item", Item),
    ("events.md", "Request", Request),
    ("store.md", "Options", EventStore.open),
    ("import-events.md", "Options of import_events", import_events),
    ("import-events.md", "The mapping", EventMapping),
    ("import-events.md", "Rules", mapping_module.Rule),
    ("import-events.md", "Values", mapping_module.Source),
    ("import-events.md", "Times", mapping_module.TimeSource),
    ("import-events.md", "Positions", mapping_module.PositionSource),
    ("import-events.md", "Kinds", mapping_module.KindSource),
    ("import-events.md", "Conditions", mapping_module.Condition),
    ("features.md", "The spec", FeatureSpec),
    ("features.md", "Item fields", spec_module.ItemFields),
    ("features.md", "Context fields", spec_module.ContextFields),
    ("features.md", "Id features", spec_module.IdFeature),
    ("features.md", "Sequences", spec_module.SequenceFeature),
    ("features.md", "Actions of a sequence", spec_module.SequenceAction),
    ("features.md", "Ids of a sequence", spec_module.SequenceId),
    ("engine.md", "Options of convert", convert),
    ("engine.md", "Options of load", load),
    ("verify.md", "Options of verify", verify),
    ("models.md", "Training options", TrainOptions),
    ("reranking.md", "Options", Reranker.open),
    ("replay.md", "Server options", ServerConfig),
]


@pytest.mark.parametrize(("page", "heading", "source"), OPTION_TABLES, ids=lambda value: getattr(value, "__name__", ""))
def test_option_table_equals_the_code(table: Table, page: str, heading: str, source: Any) -> None:
    rows = table(page, heading)
    assert {row[0]: row[1] for row in rows} == options_of(source)
    assert len(rows) == len(options_of(source))
    assert all(cell for row in rows for cell in row)


FIELD_TABLES: list[tuple[str, str, Any]] = [
    ("store.md", "Health", StoreHealth),
    ("import-events.md", "The report", ImportReport),
    ("reranking.md", "What comes back", Ranking),
    ("personalisation.md", "The result", PersonalisationResult),
]


@pytest.mark.parametrize(("page", "heading", "source"), FIELD_TABLES, ids=lambda value: getattr(value, "__name__", ""))
def test_field_table_equals_the_code(table: Table, page: str, heading: str, source: Any) -> None:
    wanted = [field.name for field in fields(source) if not field.name.startswith("_")]
    wanted += ["reasons"] if source is Ranking else []
    assert sorted(row[0] for row in table(page, heading)) == sorted(wanted)


def dense_features() -> dict[str, type[BaseModel]]:
    """Kind to class, from the union of the spec."""
    return {model.model_fields["kind"].default: model for model in get_args(spec_module.DenseFeature)}


def test_feature_kinds_equal_the_union(table: Table) -> None:
    assert [row[0] for row in table("features.md", "Feature kinds")] == list(dense_features())


def common_options() -> dict[str, str]:
    """Options that every dense feature has."""
    every = [set(options_of(model)) for model in dense_features().values()]
    first = options_of(next(iter(dense_features().values())))
    return {name: default for name, default in first.items() if all(name in one for one in every)}


def test_common_options_of_features_are_complete(table: Table) -> None:
    assert {row[0]: row[1] for row in table("features.md", "Options of every kind")} == common_options()


@pytest.mark.parametrize("kind", dense_features())
def test_options_of_a_feature_kind_are_complete(table: Table, kind: str) -> None:
    own = {name: text for name, text in options_of(dense_features()[kind]).items() if name not in common_options()}
    if not own:
        assert (
            f"`{kind}`" in (DOCS / "features.md").read_text(encoding="utf-8").split("have no options of their own")[0]
        )
        return
    assert {row[0]: row[1] for row in table("features.md", kind)} == own


@pytest.mark.parametrize(
    ("page", "heading", "wanted"),
    [
        ("events.md", "Kinds", KINDS),
        ("import-events.md", "Formats", tuple(FORMATS)),
        ("features.md", "Transforms", get_args(Transform)),
        ("passes.md", "Passes", tuple(PASSES)),
        ("models.md", "The models", tuple(ZOO)),
        ("replay.md", "Metrics", tuple(METRICS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_name_table_equals_the_code(table: Table, page: str, heading: str, wanted: tuple[str, ...]) -> None:
    assert [row[0] for row in table(page, heading)] == list(wanted)


@pytest.mark.parametrize(("heading", "name"), [("Segment", "segment"), ("Snowplow", "snowplow")])
def test_events_of_a_built_in_mapping_are_listed(table: Table, heading: str, name: str) -> None:
    wanted = set()
    for rule in EventMapping.builtin(name).effective_rules():
        (condition,) = rule.when.values()
        assert rule.kind is not None
        for word in condition.any_of or ():
            # The older transaction items are in the text.
            if word != "transaction_item":
                kind = rule.kind.names.get(str(word), str(word)) if rule.kind.path else rule.kind.constant
                wanted.add((word, kind, rule.each is not None))
    listed = [
        (word.strip(), kind, source.startswith("each"))
        for words, kind, source in table("import-events.md", heading)
        for word in words.split(",")
    ]
    assert set(listed) == wanted
    assert len(listed) == len(wanted)


def test_extras_equal_the_distribution(table: Table) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert {row[0] for row in table("install.md", "Extras")} == extras
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = {name for found in re.findall(r"rerank-sdk\[([a-z,]+)\]", text) for name in found.split(",")}
    assert named <= extras
    assert project["requires-python"].removeprefix(">=") in (DOCS / "install.md").read_text(encoding="utf-8")


def test_extras_that_errors_name_are_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    code = "".join(path.read_text(encoding="utf-8") for top in SOURCES for path in sorted((ROOT / top).rglob("*.py")))
    named = set(re.findall(r"MissingExtraError\([^)]*\"(\w+)\"\)", code))
    assert {"convert", "torch"} <= named <= set(extras)


def test_numbers_of_personalisation_equal_the_code(table: Table) -> None:
    rows = table("personalisation.md", "When it is kept")
    assert [row[0] for row in rows] == ["MIN_PAIRS", "HELD_OUT", "MIN_HELD_OUT_MOMENTS"]
    for name, value, _ in rows:
        assert value == repr(getattr(trainer, name))


def test_errors_are_all_listed(table: Table) -> None:
    raised = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.RerankError)
    ]
    assert sorted(row[0] for row in table("bad-input.md", "The errors")) == sorted(raised)


# --- commands, links, and the site -------------------------------------------------------------------------


def commands() -> Mapping[str, set[str]]:
    """Every command by its words, with its options."""
    import typer

    from rerank_sdk.cli import app

    found: dict[str, set[str]] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        found[" ".join(words)] = {option for parameter in command.params for option in parameter.opts}
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, (*words, name))

    walk(typer.main.get_command(app), ())
    return found


def test_commands_on_the_pages_exist() -> None:
    known = commands()
    seen = 0
    for path in PAGES:
        for _, body in blocks(path.read_text(encoding="utf-8"), "bash"):
            for line in body.replace("\\\n", " ").splitlines():
                for call in re.findall(r"(?:^|[|;] *)rerank ([^|;#]+)", line):
                    words = call.split()
                    name = max(
                        (known_name for known_name in known if f"{call} ".startswith(f"{known_name} ")),
                        key=len,
                        default="",
                    )
                    assert words[0].startswith("-") or name, f"{path.name}: no command {words[0]!r}"
                    options = {word.split("=")[0] for word in words if word.startswith("--")} - {"--help"}
                    assert options <= known[name], f"{path.name}: {line}"
                    seen += 1
    assert seen


def anchors(path: Path) -> set[str]:
    """Anchors that the headings of a page make."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {slugify(re.sub(r"[`*]", "", found["text"]), "-") for found in HEADING.finditer(text)}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for found in LINK.finditer(prose(path.read_text(encoding="utf-8"))):
        target = found["target"]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path.name}: {target} does not exist"
        if path.parent == DOCS:
            assert DOCS in (file.parent, *file.parents), f"{path.name}: {target} is not part of the site"
        if anchor:
            assert anchor in anchors(file), f"{path.name}: {target} has no such heading"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"[\w-]+\.md", text)) == sorted(path.name for path in PAGES)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as the build makes it; any warning is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    target = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(target)))
    return target


def test_site_builds_without_warning(site: Path) -> None:
    assert {path.with_suffix(".html").name for path in PAGES} <= {path.name for path in site.iterdir()}


def outside_addresses(text: str) -> set[str]:
    """What a page or a style sheet loads from another server; a link that a reader may follow is none."""
    found: set[str] = set()
    for tag in re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", text):
        if not re.search(r"\brel=[\"']?(?:canonical|next|prev)", tag):
            found |= set(re.findall(r"\b(?:src|href)=[\"']?((?:https?:)?//[^\"'> ]+)", tag))
    return found | set(re.findall(r"(?:url\(|@import +)[\"']?((?:https?:)?//[^\"') ]+)", text))


def test_site_works_offline(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > len(PAGES)
    assert [file.name for file in files if outside_addresses(file.read_text(encoding="utf-8"))] == []


def test_an_outside_address_is_noticed() -> None:
    assert outside_addresses('<script src="https://a.example/x.js"></script>') == {"https://a.example/x.js"}
    assert outside_addresses("<link rel=stylesheet href=//a.example/x.css>") == {"//a.example/x.css"}
    assert outside_addresses("a { src: url('https://a.example/f.woff') }") == {"https://a.example/f.woff"}
    assert outside_addresses('<a href="https://a.example/">read</a>') == set()
