"""Write the API reference from signatures and docstrings: public names first, then modules.

The pages are made on demand and not kept in the history: the docstrings are the source.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import griffe

from tools.bootstrap import ROOT

TARGET = ROOT / "docs" / "reference" / "api"

_GROUPS: Final = {
    "api": "Repositories and sessions",
    "zarr_store": "The Zarr store",
    "transactions": "Conflicts, differences and packing",
    "storage": "Storages",
    "config": "Configuration",
    "credentials": "Credentials",
    "errors": "Errors",
}
"""Headings for public names, by the package that defines them; the rest comes last."""
_FOR_USERS: Final = ("icefloe.xarray", "icefloe.dask", "icefloe.distributed", "icefloe.testing")
"""Modules that users import themselves, beside `icefloe`."""


def main(target: Path = TARGET) -> int:
    """Replace all pages."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    package = griffe.load("icefloe", search_paths=[ROOT / "src"])
    assert isinstance(package, griffe.Module)
    pages = list(public_modules(package))
    for module in pages:
        (target / f"{module.path}.md").write_text(page(module))
    (target / "index.md").write_text(index(package, pages))
    print(f"{len(pages)} pages in {target}")
    return 0


def index(package: griffe.Module, pages: list[griffe.Module]) -> str:
    """List what `import icefloe` offers, by subject, and then all modules."""
    groups: dict[str, list[str]] = {heading: [] for heading in [*_GROUPS.values(), "More"]}
    for name, member in public_names(package):
        owner = member.path.split(".")[1]
        link = f"{member.module.path}.md#{member.name.lower()}"
        entry = f"- [`{name}`]({link}): {summary(member)}".rstrip(": ")
        groups[_GROUPS.get(owner, "More")].append(entry)
    parts = ["# Names of `icefloe`"]
    parts += [f"## {heading}\n\n" + "\n".join(names) for heading, names in groups.items() if names]
    for_users = [module for module in pages if module.path in _FOR_USERS]
    inside = [module for module in pages if module.path not in _FOR_USERS]
    parts += ["# Modules beside it", listed(for_users), "# All other modules", listed(inside)]
    return "\n\n".join(parts) + "\n"


def listed(modules: list[griffe.Module]) -> str:
    """Make a list of links to modules."""
    return "\n".join(f"- [{each.path}]({each.path}.md): {summary(each)}" for each in modules)


def public_names(package: griffe.Module) -> Iterator[tuple[str, griffe.Object]]:
    """Return what the package exports, each with where it is defined."""
    for name in sorted(map(str, package.exports or []), key=str.lower):
        member = package.members[name]
        found = member.final_target if isinstance(member, griffe.Alias) else member
        if not name.startswith("__"):
            assert isinstance(found, griffe.Object)
            yield name, found


def public_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Walk a module and those below it, leaving out private ones."""
    yield module
    for _, child in sorted(module.modules.items()):
        if not child.name.startswith("_"):
            yield from public_modules(child)


def page(module: griffe.Module) -> str:
    """Render one module."""
    parts = [f"# {module.path}", docstring(module)]
    for name, member in module.members.items():
        if isinstance(member, griffe.Alias | griffe.Module) or not member.is_public:
            continue
        parts += [f"## {name}", *render(member)]
        if isinstance(member, griffe.Class):
            parts += render_members(member)
    return "\n\n".join(part for part in parts if part) + "\n"


def render_members(owner: griffe.Class) -> Iterator[str]:
    """Show what a class offers, its own and what it has from our other classes."""
    members = members_of(owner)
    for name, member in members.items():
        if is_twin(name, members):
            continue
        yield f"### {owner.name}.{name}"
        shown, text = render(member)
        yield shown
        if f"{name}_async" in members:
            text = f"{text}\n\nTo be awaited: `{name}_async`.".lstrip()
        yield text


def members_of(owner: griffe.Class) -> dict[str, griffe.Object]:
    """Gather the public members of a class, inherited ones last."""
    found: dict[str, griffe.Object] = {}
    for name, member in [*owner.members.items(), *owner.inherited_members.items()]:
        if name.startswith("_") or name in found:
            continue
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if isinstance(target, griffe.Object):
            found[name] = target
    return found


def is_twin(name: str, members: dict[str, griffe.Object]) -> bool:
    """Return whether a method is the async form of a documented blocking form."""
    plain = name.removesuffix("_async")
    return plain != name and plain in members and not docstring(members[name])


def render(member: griffe.Object) -> list[str]:
    """Show how a name is written in code, then what it says about itself."""
    match member:
        case griffe.Function():
            shown = str(member.signature())
        case griffe.Class():
            bases = ", ".join(str(base) for base in member.bases)
            shown = f"class {member.name}({bases})" if bases else f"class {member.name}"
        case griffe.Attribute(annotation=None):
            shown = made_from_function(member) or member.name
        case griffe.Attribute():
            shown = f"{member.name}: {member.annotation}"
        case _:
            shown = member.name
    return [f"```text\n{shown}\n```", docstring(member)]


def made_from_function(attribute: griffe.Attribute) -> str | None:
    """Show the parameters of `name = made_by(function)`, which are those of the function."""
    match attribute.value:
        case griffe.ExprCall(arguments=[griffe.Expr() as argument]):
            with suppress(griffe.NameResolutionError, KeyError):
                function = attribute.modules_collection[argument.canonical_path]
                function = function.final_target if function.is_alias else function
                if isinstance(function, griffe.Function):
                    parameters = str(function.signature()).partition("(")[2].rpartition(")")[0]
                    return f"{attribute.name}({parameters})"
    return None


def docstring(member: griffe.Object) -> str:
    """Return the text of a docstring, or nothing."""
    return member.docstring.value if member.docstring else ""


def summary(member: griffe.Object) -> str:
    """Return the first line of a docstring."""
    return docstring(member).partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
