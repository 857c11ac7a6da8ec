"""The shape of the project: what may stand where, checked so that it stays so."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ingest", "server", "frontend")
SQL_HOMES = ("ingest/store/", "server/queries/")
LONGEST_FILE = 400
_SQL = re.compile(
    r"\b(SELECT\s.+\sFROM\s|SELECT\s+(count|min|max)\(|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s+(OR\s+REPLACE\s+)?TABLE\s|COPY\s+\(|"
    r"ALTER\s+TABLE\s|ATTACH\s+'|READ_JSON|read_parquet\()",
    re.DOTALL,
)
_COLOUR = re.compile(r"^(#[0-9a-fA-F]{3,4}|#[0-9a-fA-F]{6}|#[0-9a-fA-F]{8}|(rgb|rgba|hsl|hsla|oklch)\(.*\))$")
_MACHINE_PATH = re.compile(r"/(work|home|root|Users|mnt|srv)/[\w.-]+")


def sources(*folders: str) -> Iterator[Path]:
    """Python files below folders of the project."""
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def texts(path: Path, *, docstrings: bool = False) -> Iterator[tuple[int, str]]:
    """Line and value of every string literal; an f-string is one text with its placeholders left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set() if docstrings else _docstrings(tree)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, " ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside and id(node) not in skipped:
            yield node.lineno, node.value


def _docstrings(tree: ast.AST) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(id(statement.value))
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, in full."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_layers_hold() -> None:
    found = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]


def test_sql_stands_only_in_the_store_and_the_queries() -> None:
    wrong = [
        f"{short(path)}:{line}"
        for path in sources(*PACKAGES)
        if not short(path).startswith(SQL_HOMES) and short(path) != "ingest/schema/tables.py"
        for line, text in texts(path)
        if _SQL.search(text)
    ]
    assert not wrong


def test_the_sql_guard_sees_sql() -> None:
    assert (
        _SQL.search("SELECT step\n FROM point") and _SQL.search("INSERT INTO meta VALUES") and not _SQL.search("Select a run from the list")
    )


def test_colours_stand_only_in_the_theme() -> None:
    wrong = [
        f"{short(path)}:{line}: {text}"
        for path in sources(*PACKAGES)
        if short(path) != "frontend/theme.py"
        for line, text in texts(path)
        if _COLOUR.match(text.strip())
    ]
    assert not wrong


def test_rules_leave_arithmetic_to_detectors_and_checks() -> None:
    wrong = [
        short(path) for path in sources("server/rules") if any(name.split(".")[0] in ("numpy", "scipy", "pandas") for name in imports(path))
    ]
    assert not wrong


def test_readers_name_no_metric_of_ours() -> None:
    from ingest.schema.metrics import METRICS

    # A single word such as `lr` is a trainer's spelling as well.
    ours = {name for name in METRICS if "." in name}
    wrong = [f"{short(path)}:{line}: {text}" for path in sources("ingest/readers") for line, text in texts(path) if text in ours]
    assert not wrong


def test_files_stay_readable() -> None:
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*PACKAGES)}
    long = {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE}
    assert not long, f"split by question: {long}"


def test_every_reader_on_disk_is_listed() -> None:
    from ingest.readers import READERS

    listed = {type(reader).__module__ for reader in READERS}
    assert len({reader.name for reader in READERS}) == len(READERS)
    classes = {f"ingest.readers.{path.stem}" for path in sources("ingest/readers") if _reader_classes(path)}
    assert listed == classes


def test_every_rule_on_disk_is_listed() -> None:
    from server.rules import RULES

    listed = {type(rule).__module__ for rule in RULES}
    classes = {f"server.rules.{path.stem}" for path in sources("server/rules") if _classes_with(path, "evaluate") and path.stem != "base"}
    assert listed == classes
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


def test_every_page_on_disk_is_listed() -> None:
    from frontend.pages import PAGES

    listed = {page.__name__ for page in PAGES}
    pages = (path for path in sources("frontend/pages") if re.search(r"^PATH\b", path.read_text(encoding="utf-8"), re.MULTILINE))
    on_disk = {f"frontend.pages.{path.stem}" for path in pages}
    assert listed == on_disk
    assert len({page.PATH for page in PAGES}) == len(PAGES)


def test_every_command_on_disk_is_listed() -> None:
    from frontend.commands import NAMES, commands

    assert {path.stem for path in sources("frontend/commands")} - {"__init__"} == set(NAMES)
    assert all(callable(module.add_parser) and callable(module.run) for module in commands())


def test_help_needs_nothing_heavy() -> None:
    code = "import sys; from frontend.cli import build_parser; build_parser(); print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert not {"dash", "duckdb", "fastapi", "numpy", "pandas", "plotly", "pyarrow", "pydantic", "sqlalchemy"} & set(loaded)


def test_every_option_has_help() -> None:
    from frontend.cli import build_parser

    def check(parser: Any) -> None:
        for action in parser._actions:
            if hasattr(action, "choices") and isinstance(action.choices, dict):
                for inner in action.choices.values():
                    check(inner)
            elif action.option_strings:
                assert action.help, f"{parser.prog} {action.option_strings}"

    check(build_parser())


def test_nothing_names_the_machine_it_was_written_on() -> None:
    wrong = []
    for path in _tracked():
        if path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".js", ".css", ".cfg", "") and path.name != "LICENSE":
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
                if _MACHINE_PATH.search(line) and "tests/data/" not in short(path) and short(path) not in _MAY_NAME_PATHS:
                    wrong.append(f"{short(path)}:{number}: {line.strip()[:80]}")
    assert not wrong


_MAY_NAME_PATHS = ("tests/test_shape.py", "Dockerfile", "docker-compose.yml", "README.md", "tests/test_container.py")


def test_tests_and_migrations_are_no_packages() -> None:
    # With an __init__.py there, `import server` or `import alembic` finds the wrong folder.
    assert not [short(path) for folder in ("tests", "alembic") for path in (ROOT / folder).rglob("__init__.py")]


def test_declared_dependencies_are_the_imported_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!\[; ]", name)[0].lower().replace("-", "_") for name in project["dependencies"]}
    used = {name.split(".")[0] for path in sources(*PACKAGES, "alembic") for name in imports(path)}
    third = {name.lower() for name in used - set(sys.stdlib_module_names) - set(PACKAGES) - {"__future__", "alembic_"}}
    # What FastAPI brings and we name: starlette's types. websockets is uvicorn's choice, made by being installed.
    assert third - {"starlette", "pydantic"} == declared - {"websockets"}


def test_the_lock_files_pin_every_dependency_with_a_hash() -> None:
    for name in ("run", "dev", "build"):
        text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
        pins = re.findall(r"^([a-z0-9._-]+)==\S+.*\\$", text, re.MULTILINE)
        assert pins and text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text and "--index" not in text and "--find-links" not in text
    run = (ROOT / "requirements/run.txt").read_text(encoding="utf-8")
    assert "duckdb==1.5.5 " in run and "playwright" not in run and "pytest" not in run


def _classes_with(path: Path, *methods: str) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if set(methods) <= names:
                return True
    return False


def _reader_classes(path: Path) -> bool:
    return path.stem != "base" and _classes_with(path, "sniff", "read")


def _tracked() -> list[Path]:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if found.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in found.stdout.splitlines() if (ROOT / name).is_file()]
