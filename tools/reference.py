"""Write the API reference from the running package: subjects first, then modules.

    python -m tools.reference FOLDER       write the pages as Markdown into FOLDER

Objects come from the imported package, so names that are made at run time are included. The text of
signatures, and the docstrings below fields, come from the source of these objects. The pages are
made on demand and not kept in the history: the docstrings are the source.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import icefloe

SUBJECTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "repositories": ("Repositories", ("api.repository", "api.status", "opening", "drop_in")),
    "sessions": (
        "Sessions and stores",
        (
            "api.session",
            "zarr_store.store",
            "zarr_store.selections",
            "transactions.session",
            "transactions.packing",
            "storage.chunk_type",
        ),
    ),
    "history": (
        "History and differences",
        ("repo.snapshot_info", "api.updates", "api.graph", "transactions.diffs"),
    ),
    "conflicts": ("Conflicts", ("transactions.conflicts",)),
    "storages": ("Storages", ("storage", "maintenance.doctor", "version")),
    "virtual-chunks": (
        "Virtual chunks",
        ("config.containers", "config.stores", "maintenance.dependencies"),
    ),
    "credentials": ("Credentials", ("credentials",)),
    "configuration": ("Configuration", ("config",)),
    "jobs": ("Ingest, append and rechunk", ("jobs",)),
    "maintenance": ("Maintenance", ("maintenance", "zarr_store.exporting", "api.migration")),
    "service": ("The repository service", ("catalog",)),
    "errors": ("Errors", ("errors",)),
    "diagnostics": ("Diagnostics", ("api.about", "logs")),
    "more": ("More names", ("",)),
}
"""Title of each page and the modules whose public names it shows; the first match counts."""
ALIASES: Final = {
    "AnyObjectStoreConfig": "virtual-chunks",
    "CommitMethod": "repositories",
}
"""Pages of names that are not defined by a class or function; `Any...` are credentials else."""
FOR_USERS: Final = (
    "icefloe.spark",
    "icefloe.pipeline",
    "icefloe.xarray",
    "icefloe.dask",
    "icefloe.distributed",
    "icefloe.testing",
)
"""Modules that users import themselves, beside `icefloe`."""
_DOCTEST: Final = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
_SECTION: Final = re.compile(r"^(Args|Returns|Raises|Yields):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ITEM: Final = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)
_WIDEST: Final = 88


def write_reference(folder: Path) -> int:
    """Replace all pages in `folder`; return their number."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "modules").mkdir(parents=True)
    pages = dict(_pages())
    for name, text in pages.items():
        (folder / name).write_text(text)
    return len(pages)


def _pages() -> Iterator[tuple[str, str]]:
    """Yield file name and text of each page."""
    subjects = names_by_subject()
    for slug, names in subjects.items():
        yield f"{slug}.md", _subject_page(SUBJECTS[slug][0], names)
    packages: dict[str, list[ModuleType]] = {}
    for module in public_modules():
        packages.setdefault(".".join(module.__name__.split(".")[:2]), []).append(module)
    for name in FOR_USERS:
        yield f"{name}.md", _package_page(packages[name][:1])
    for name, modules in packages.items():
        # The search of the site is for users.
        header = "---\nsearch:\n  exclude: true\n---\n\n"
        yield f"modules/{name}.md", header + _package_page(modules)
    yield "index.md", _index(subjects, [packages[name][0] for name in FOR_USERS])
    yield "modules/index.md", _module_index(packages)


# Names and modules


def names_by_subject() -> dict[str, dict[str, Any]]:
    """Return the public names of `icefloe` and their objects, under the page that shows them."""
    subjects: dict[str, dict[str, Any]] = {slug: {} for slug in SUBJECTS}
    for name in sorted(icefloe.__all__, key=str.lower):
        value = getattr(icefloe, name)
        if not isinstance(value, ModuleType) and not name.startswith("__"):
            subjects[_subject(name, value)][name] = value
    return {slug: names for slug, names in subjects.items() if names}


def _subject(name: str, value: object) -> str:
    if not _is_definition(value):
        return ALIASES.get(name, "credentials" if name.startswith("Any") else "more")
    owner = str(value.__module__).removeprefix("icefloe.")
    for slug, (_, prefixes) in SUBJECTS.items():
        for prefix in prefixes:
            if not prefix or owner == prefix or owner.startswith(f"{prefix}."):
                return slug
    raise AssertionError(name)


def public_modules() -> Iterator[ModuleType]:
    """Import all modules without a private name."""
    for found in sorted(pkgutil.walk_packages(icefloe.__path__, "icefloe."), key=lambda m: m.name):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def members_of(owner: type) -> dict[str, Any]:
    """Return the public members of a class that this package defines, inherited members last.

    >>> from icefloe.errors import NotFoundError
    >>> "default_kind" in members_of(NotFoundError), "args" in members_of(NotFoundError)
    (True, False)
    """
    members: dict[str, Any] = {}
    for base in owner.__mro__:
        if base.__module__.split(".")[0] != "icefloe":
            continue
        for name in [*_fields(base), *vars(base)]:
            if not name.startswith("_") and name not in members:
                members[name] = inspect.getattr_static(base, name, None)
    return members


# Pages


def _index(subjects: Mapping[str, Mapping[str, Any]], for_users: list[ModuleType]) -> str:
    parts = ["# API reference", "These are the names that `import icefloe` offers, by subject."]
    for slug, names in subjects.items():
        entries = [_entry(name, value, slug, names) for name, value in names.items()]
        parts += [f"## {SUBJECTS[slug][0]}", "\n".join(entries)]
    parts += ["## Modules beside it", "Users import these modules themselves:"]
    parts.append("\n".join(_module_entry(m, f"{m.__name__}.md") for m in for_users))
    values = [getattr(icefloe, name) for name in icefloe.__all__]
    drop_in = [value for value in values if isinstance(value, ModuleType)]
    parts.append("These modules have the names that programs for `icechunk` import:")
    parts.append("\n".join(_module_entry(m, f"modules/{m.__name__}.md") for m in drop_in))
    parts.append("[All modules](modules/index.md), for contributors.")
    return "\n\n".join(parts) + "\n"


def _module_index(packages: Mapping[str, list[ModuleType]]) -> str:
    parts = ["# All modules"]
    for name, modules in packages.items():
        parts.append(f"## {name.removeprefix('icefloe.')}")
        parts.append("\n".join(_module_entry(m, f"{name}.md#{_anchor(m)}") for m in modules))
    return "\n\n".join(parts) + "\n"


def _module_entry(module: ModuleType, link: str) -> str:
    return f"- [{module.__name__}]({link}): {_summary(module)}"


def _anchor(module: ModuleType) -> str:
    return module.__name__.replace(".", "")


def _entry(name: str, value: object, slug: str, siblings: Mapping[str, Any]) -> str:
    shown = name.removesuffix("_async") if _is_twin(name, siblings) else name
    return f"- [`{name}`]({slug}.md#{shown.lower()}): {_summary(value)}".rstrip(": ")


def _subject_page(title: str, names: Mapping[str, Any]) -> str:
    parts = [f"# {title}"]
    for name, value in names.items():
        if not _is_twin(name, names):
            parts += _section(name, value, names)
    return "\n\n".join(filter(None, parts)) + "\n"


def _package_page(modules: list[ModuleType]) -> str:
    """Show the modules of a package; a module alone gets the heading of the page."""
    if len(modules) == 1:
        return "\n\n".join(filter(None, _module_parts(modules[0], "#"))) + "\n"
    parts = [f"# {modules[0].__name__}, all modules"]
    for module in modules:
        parts += _module_parts(module, "##")
    return "\n\n".join(filter(None, parts)) + "\n"


def _module_parts(module: ModuleType, level: str) -> Iterator[str]:
    """Show the public names that a module defines, or lists in `__all__`."""
    listed = getattr(module, "__all__", ()) if module.__name__ in FOR_USERS else ()
    names = {name: getattr(module, name) for name in [*listed, *vars(module)]}
    yield f"{level} {module.__name__}"
    yield _docstring(module)
    for name, value in names.items():
        is_own = getattr(value, "__module__", None) == module.__name__ or name in listed
        is_shown = is_own and _is_definition(value) and not name.startswith("_")
        if is_shown and not _is_twin(name, names):
            yield from _section(name, value, names, level=f"{level}#")


def _section(
    name: str, value: Any, siblings: Mapping[str, Any], level: str = "##"
) -> Iterator[str]:
    """Yield heading, code and text of a name, and of the members of a class."""
    yield f"{level} {name}"
    if not _is_definition(value):
        yield _code(f"{name} = {_short(str(value))}")
        return
    if not isinstance(value, type):
        yield from _function(name, value, siblings)
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if _is_for_users(base))
    yield _code(f"class {name}({bases})" if bases else f"class {name}")
    yield _docstring(value)
    members = members_of(value)
    yield _values(value, members)
    for member_name, member in members.items():
        if _is_shown(member) and not _is_twin(member_name, members):
            yield f"{level}# {name}.{member_name}"
            yield from _function(member_name, member, members)


def _is_definition(value: object) -> bool:
    """Return whether a value is a class or function, and not an alias of types."""
    return isinstance(value, type) or inspect.isfunction(value) or hasattr(value, "__wrapped__")


def _is_for_users(base: type) -> bool:
    """Return whether readers know a base class: a public name, or one of another package."""
    is_ours = base.__module__.split(".")[0] == "icefloe"
    return base is not object and (not is_ours or base.__name__ in icefloe.__all__)


def _is_shown(member: object) -> bool:
    """Return whether a member has a heading: functions, properties and nested classes."""
    return _is_definition(_plain(member))


def _function(name: str, value: Any, siblings: Mapping[str, Any]) -> Iterator[str]:
    yield _code(signature(name, value))
    yield _docstring(_plain(value))
    if isinstance(value, type):
        yield _values(value, members_of(value))
    if f"{name}_async" in siblings:
        yield f"Async form: `{name}_async`."


def _values(owner: type, members: Mapping[str, Any]) -> str:
    """List the fields of a class, or the members of an enumeration."""
    if issubclass(owner, Enum):
        return "\n".join(f"- `{each.name}` = `{each.value!r}`" for each in owner)
    fields = {
        name: text for base in reversed(owner.__mro__) for name, text in _fields(base).items()
    }
    lines = [
        f"- `{code}`" + (f": {text}" if text else "")
        for name, (code, text) in fields.items()
        if name in members
    ]
    return "\n".join(lines)


def _is_twin(name: str, siblings: Mapping[str, Any]) -> bool:
    """Return whether a function is the async form of one that is shown."""
    return name.endswith("_async") and name.removesuffix("_async") in siblings


# Text of objects


def signature(name: str, value: Any) -> str:
    """Return how a function, property or class is declared, one parameter to a line if it is long.

    >>> signature("getcwd", Path.cwd)
    'def getcwd()'
    """
    plain = _plain(value)
    if isinstance(plain, type):
        return f"class {plain.__qualname__}"
    node = _source_of(plain)
    if isinstance(value, property | cached_property):
        returned = f": {ast.unparse(node.returns)}" if node and node.returns else ""
        return f"{name}{returned}"
    arguments, returned = _declared(plain) if node is None else _written(node)
    # A blocking twin is made of the async function that `plain` is.
    called = getattr(value, "__func__", value)
    head = f"{'async ' if inspect.iscoroutinefunction(called) else ''}def {name}"
    line = f"{head}({', '.join(arguments)}){returned}"
    if len(line) <= _WIDEST:
        return line
    body = "".join(f"    {argument},\n" for argument in arguments)
    return f"{head}(\n{body}){returned}"


def _written(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[list[str], str]:
    """Return parameters and result as they are written in the source."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    parts = [_parameter(*each) for each in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg:
        parts.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_parameter(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        parts.append(f"**{ast.unparse(given.kwarg)}")
    if positional and positional[0].arg in {"self", "cls"}:
        del parts[0]
    return parts, f" -> {ast.unparse(node.returns)}" if node.returns else ""


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return (
        f"{text} = {ast.unparse(default)}"
        if argument.annotation
        else f"{text}={ast.unparse(default)}"
    )


def _declared(function: Any) -> tuple[list[str], str]:
    """Return parameters and result of a function without source."""
    found = inspect.signature(function)
    parameters = [_short(str(each)) for each in found.parameters.values()]
    return parameters, ""


def _short(text: str) -> str:
    """Remove the modules in front of the names of classes."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)


def _plain(value: Any) -> Any:
    """Return the function behind a method, a property or a wrapper."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, cached_property):
        value = value.func
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return inspect.unwrap(value) if callable(value) else value


def _docstring(value: Any) -> str:
    """Return a docstring as Markdown: examples fenced, lists of parameters as lists."""
    if not (isinstance(value, type | ModuleType) or callable(value)):
        return ""
    text = inspect.cleandoc(value.__doc__ or "")
    text = _SECTION.sub(lambda match: _list(match[1], match[2]), text)
    return _DOCTEST.sub(lambda match: f"```pycon\n{inspect.cleandoc(match[0])}\n```", text)


def _list(title: str, body: str) -> str:
    items = _ITEM.sub(r"- `\1`: ", body)
    lines = [
        line if line.startswith("- ") else line.removeprefix("    ") for line in items.split("\n")
    ]
    return f"**{title}**\n\n" + "\n".join(lines).rstrip() + "\n"


def _summary(value: Any) -> str:
    return _docstring(value).partition("\n")[0]


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


# Source


@cache
def _tree(module: str) -> dict[str, ast.AST]:
    """Return the definitions of a module by their qualified name."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if not module.startswith("icefloe") or path is None:
        return {}
    found: dict[str, ast.AST] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[f"{prefix}{child.name}"] = child
                inner = "" if isinstance(child, ast.ClassDef) else "<locals>."
                visit(child, f"{prefix}{child.name}.{inner}")

    visit(ast.parse(Path(path).read_text()), "")
    return found


def _source_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    node = _tree(str(function.__module__)).get(getattr(function, "__qualname__", ""))
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _fields(owner: type) -> dict[str, tuple[str, str]]:
    """Return code and text of the annotated public fields in the body of a class."""
    node = _tree(owner.__module__).get(owner.__qualname__)
    if not isinstance(node, ast.ClassDef):
        return {}
    found = {}
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        if not field.target.id.startswith("_"):
            found[field.target.id] = (ast.unparse(field), text)
    return found


if __name__ == "__main__":
    print(write_reference(Path(sys.argv[1])), "pages")
