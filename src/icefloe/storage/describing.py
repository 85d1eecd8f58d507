"""How storages print: never with secrets."""

from dataclasses import fields
from typing import Final

from icefloe.storage.specs import (
    AzureSpec,
    GcsSpec,
    GuardedHttpSpec,
    HttpSpec,
    LocalSpec,
    MemorySpec,
    RedirectSpec,
    S3Spec,
    Spec,
)

_KINDS: Final[dict[type, str]] = {
    MemorySpec: "in-memory",
    LocalSpec: "local filesystem",
    S3Spec: "S3",
    GcsSpec: "GCS",
    AzureSpec: "Azure",
    HttpSpec: "HTTP",
    GuardedHttpSpec: "HTTP",
    RedirectSpec: "redirect",
}

_FUNCTIONS: Final[dict[type, tuple[str, dict[str, object]]]] = {
    MemorySpec: ("in_memory_storage", {}),
    LocalSpec: ("local_filesystem_storage", {}),
    S3Spec: ("s3_storage", {"bucket": None, "prefix": None}),
    GcsSpec: ("gcs_storage", {"bucket": None, "prefix": None}),
    AzureSpec: ("azure_storage", {"account": None, "container": None, "prefix": ""}),
    HttpSpec: ("http_storage", {}),
    GuardedHttpSpec: ("http_storage", {}),
    RedirectSpec: ("redirect_storage", {}),
}
"""The function that makes each kind, and the arguments it must always have."""

_WAYS_IN: Final = {
    "FromEnv": "from the environment",
    "Anonymous": "none: unsigned requests",
    "Static": "given",
    "Refreshable": "from a function",
}


def source_code(spec: Spec) -> str:
    """Write the call that makes such a storage; given credentials and headers are left out.

    >>> source_code(LocalSpec("/data/repo"))
    "icefloe.storage.local_filesystem_storage(path='/data/repo')"
    """
    function, needed = _FUNCTIONS[type(spec)]
    if isinstance(spec, S3Spec) and spec.encodes_keys:
        function = "s3_object_store_storage"
    shown = needed | {name: value for name, value in _arguments(spec).items() if value is not None}
    if _way_in(spec) == "Anonymous":
        shown["anonymous"] = True
    arguments = ", ".join(f"{name}={given!r}" for name, given in shown.items())
    return f"icefloe.storage.{function}({arguments})"


def describe(spec: Spec) -> dict[str, str]:
    """Say what a storage is, line by line.

    >>> describe(LocalSpec("/data/repo"))
    {'type': 'local filesystem', 'path': '/data/repo'}
    """
    lines = {"type": _KINDS[type(spec)]}
    for name, value in _arguments(spec).items():
        if value is not None:
            lines[name] = getattr(value, "name", None) or str(value)
    if (way_in := _way_in(spec)) is not None:
        lines["credentials"] = _WAYS_IN[way_in]
    if isinstance(spec, S3Spec) and not spec.can_write:
        lines["access"] = "read-only"
    return lines


def _arguments(spec: Spec) -> dict[str, object]:
    """Gather what may be shown; None is what is not set."""
    match spec:
        case MemorySpec():
            return {}
        case LocalSpec(path, durable):
            return {"path": path, "durable": durable or None}
        case S3Spec():
            options = {
                each.name: getattr(spec.options, each.name) or None
                for each in fields(spec.options)
                if each.name != "anonymous"
            }
            return {"bucket": spec.bucket, "prefix": spec.prefix or None, **options}
        case GcsSpec():
            return {"bucket": spec.bucket, "prefix": spec.prefix or None}
        case AzureSpec():
            return {
                "account": spec.account,
                "container": spec.container,
                "prefix": spec.prefix or None,
            }
        case HttpSpec() | GuardedHttpSpec():
            return {"base_url": spec.place}
        case RedirectSpec():
            return {
                "base_url": spec.place,
                "from_env": spec.from_env or None,
                "trusted_endpoints": list(spec.trusted_endpoints) or None,
            }


def _way_in(spec: Spec) -> str | None:
    match spec:
        case S3Spec() | GcsSpec() | AzureSpec():
            return type(spec.credentials).__name__
        case _:
            return None
