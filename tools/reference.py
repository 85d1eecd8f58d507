"""Write the API reference, one page per module, from signatures and docstrings.

The pages are made on demand and not kept in the history: the docstrings are the source.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

from tools.bootstrap import ROOT

TARGET = ROOT / "docs" / "reference" / "api"


def main(target: Path = TARGET) -> int:
    """Replace all pages."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    package = griffe.load("icefloe", search_paths=[ROOT / "src"])
    assert isinstance(package, griffe.Module)
    pages = list(public_modules(package))
    for module in pages:
        (target / f"{module.path}.md").write_text(page(module))
    index = [f"- [{module.path}]({module.path}.md): {summary(module)}" for module in pages]
    (target / "index.md").write_text("\n".join(["# Modules", "", *index, ""]))
    print(f"{len(pages)} pages in {target}")
    return 0


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
            for inner, attribute in member.members.items():
                if not (isinstance(attribute, griffe.Alias) or inner.startswith("_")):
                    parts += [f"### {name}.{inner}", *render(attribute)]
    return "\n\n".join(part for part in parts if part) + "\n"


def render(member: griffe.Object) -> list[str]:
    """Show how a name is written in code, then what it says about itself."""
    match member:
        case griffe.Function():
            shown = str(member.signature())
        case griffe.Class():
            bases = ", ".join(str(base) for base in member.bases)
            shown = f"class {member.name}({bases})" if bases else f"class {member.name}"
        case griffe.Attribute(annotation=None):
            shown = member.name
        case griffe.Attribute():
            shown = f"{member.name}: {member.annotation}"
        case _:
            shown = member.name
    return [f"```text\n{shown}\n```", docstring(member)]


def docstring(member: griffe.Object) -> str:
    """Give the text of a docstring, or nothing."""
    return member.docstring.value if member.docstring else ""


def summary(member: griffe.Object) -> str:
    """Give the first line of a docstring."""
    return docstring(member).partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
