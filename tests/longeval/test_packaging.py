"""The five top-level folders import as subpackages of longeval: wheel, editable, any folder, spawned processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = """
import multiprocessing, longeval.kernels, longeval.models, longeval.results, longeval.tasks, longeval.tasks.ruler
from pathlib import Path

def inside(_):
    import longeval.tasks
    return longeval.tasks.__file__

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(inside, [0]) == [longeval.tasks.__file__]
    assert (Path(longeval.__file__).parent / "py.typed").is_file()
    print(longeval.tasks.__file__)
"""


@pytest.fixture(scope="module")
def wheel_site(tmp_path_factory):
    """A folder with only longeval's wheel unpacked, to stand first on the path."""
    # From a copy: a build leaves folders behind, and picks up what an earlier one left.
    source, built = tmp_path_factory.mktemp("source") / "longeval", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "golden"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    site = tmp_path_factory.mktemp("site")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(site),
        *map(str, built.glob("*.whl")),
    ]
    subprocess.run(install, check=True, capture_output=True)
    return site


def imported_from(cwd, script_folder, first_on_path):
    script = script_folder / "check.py"
    script.write_text(CHECK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, first_on_path))}
    answer = subprocess.run(
        [sys.executable, str(script)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return Path(answer.stdout.strip())


def test_wheel_from_another_folder(wheel_site, tmp_path):
    assert imported_from(tmp_path, tmp_path, [wheel_site]) == wheel_site / "longeval" / "tasks" / "__init__.py"


def test_wheel_from_the_repository_root(wheel_site, tmp_path):
    """There the checkout's folder `longeval` shadows the wheel; its subpackages must come from the checkout too."""
    assert imported_from(ROOT, tmp_path, [ROOT, wheel_site]) == ROOT / "tasks" / "__init__.py"


def test_installed_package_from_another_folder(tmp_path):
    """Whichever way the package under test is installed (editable in the README's test command)."""
    assert imported_from(tmp_path, tmp_path, []).name == "__init__.py"


def test_wheel_carries_every_module(wheel_site):
    folders = {"longeval": "", "tasks": "tasks", "models": "models", "kernels": "kernels", "results": "results"}
    for folder, package in folders.items():
        for file in (ROOT / folder).rglob("*.py"):
            assert (wheel_site / "longeval" / package / file.relative_to(ROOT / folder)).is_file(), file


def test_importing_longeval_is_light():
    code = "import longeval, sys; assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_public_api_survives_importing_everything():
    code = "import longeval, longeval.cli; assert all(callable(getattr(longeval, name)) for name in longeval.__all__)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
