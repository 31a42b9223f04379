"""The tree keeps its own rules: bounds, file sizes, targets, nothing of one machine in it."""

from __future__ import annotations

import configparser
import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from danube.core.settings import Settings, options_without_unit

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
GENERATED = "danube/wire/_generated/"
# Put together here, so that this file does not contain them.
MACHINE_PATHS = re.compile(
    "|".join(["/" + "root/", "/" + r"home/\w", "/" + "work/(main|shared)", "/" + "tmp/b(rief|ash)"])
    + "|/"
    + "opt/wheels|/"
    + "Users/"
)
REGISTRY_HOSTS = re.compile(
    r"\.".join(["pypi", "org"])
    + "|"
    + r"\.".join(["pythonhosted", "org"])
    + "|"
    + r"\.".join(["(maven|sonatype)", "org"])
    + "|"
    + r"mirror\.\w+"
)


def tree() -> list[str]:
    """Return every file of the tree, committed or about to be, but not what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements() -> list[tuple[str, str]]:
    """Return every dependency as (extra, requirement); the base install has the extra ``base``."""
    parser = setup_cfg()
    lists = {"base": parser["options"]["install_requires"], **parser["options.extras_require"]}
    return [
        (extra, line.strip())
        for extra, text in lists.items()
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


@pytest.mark.parametrize(("extra", "requirement"), requirements())
def test_every_dependency_has_a_lower_and_an_upper_bound(extra: str, requirement: str) -> None:
    bounds = requirement.partition(";")[0]
    ours = requirement.startswith("danube-spark[")
    assert ours or "==" in bounds or (">=" in bounds and "<" in bounds)


def test_the_extras_are_those_that_the_readme_promises() -> None:
    extras = {extra for extra, _ in requirements()}
    assert {"base", "broker", "spark", "java", "dev", "all"} <= extras


def test_the_lock_pins_every_dependency_within_its_bounds() -> None:
    lock = (ROOT / "requirements" / "lock.txt").read_text() + (
        ROOT / "requirements" / "java.txt"
    ).read_text()
    pinned = {m[1].lower().replace("_", "-") for m in re.finditer(r"^([\w.-]+)==", lock, re.M)}
    named = {
        re.split(r"[ \[<>=;]", requirement)[0].lower()
        for _, requirement in requirements()
        if not requirement.startswith("danube-spark[")
    }
    assert named <= pinned


def test_the_lower_bounds_allow_nothing_older_than_the_stubs() -> None:
    # Generated code checks at import that grpcio and protobuf are not older than its generator.
    base = dict(
        line.split(" ", 1) for extra, line in requirements() if extra == "base" and " " in line
    )
    for file in (ROOT / GENERATED).rglob("*.py"):
        text = file.read_text()
        grpc = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)
        assert grpc is None or version(base["grpcio"]) >= version(grpc[1]), file.name
        gencode = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+)", text)
        if gencode is not None:
            wanted = tuple(int(part) for part in gencode.groups())
            assert version(base["protobuf"]) >= wanted, file.name


def version(text: str) -> tuple[int, ...]:
    found = re.search(r"[\d.]+", text)
    assert found is not None
    return tuple(int(part) for part in found[0].split("."))


def test_pyproject_names_nothing_but_the_build_backend() -> None:
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())) == {"build-system"}


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.M)) - {"absent"}
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert {line.split()[1] for line in listed.splitlines()} == targets
    asked_for = "demo test test-all lint format bench proto jars lock clean help"
    assert set(asked_for.split()) <= targets


def test_files_have_one_idea_and_fewer_than_600_lines() -> None:
    long = {
        name: lines
        for name in tree()
        if name.endswith(".py") and not name.startswith(GENERATED)
        if (lines := len((ROOT / name).read_text().splitlines())) >= MAX_LINES
    }
    assert long == {}


def test_nothing_in_the_tree_belongs_to_one_machine_or_registry() -> None:
    found = []
    for name in tree():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_every_number_in_the_settings_has_its_unit_in_its_name() -> None:
    for name in tree():
        if not re.fullmatch(r"danube/.*\.py", name):
            continue
        if re.search(r"^class \w+\(Settings\)", (ROOT / name).read_text(), re.M):
            importlib.import_module(name.removesuffix(".py").replace("/", "."))
    rooms = [room for room in Settings.__subclasses__() if room.__module__.startswith("danube.")]
    wrong = {f"{room.__module__}.{room.__name__}": options_without_unit(room) for room in rooms}
    assert {room: keys for room, keys in wrong.items() if keys} == {}


def test_the_continuous_integration_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "exec make test" in script.read_text()
