"""YAML as a tree of plain values, with local tags (`!s3`) kept beside what they mark.

The tree is built from the parser's events, so nothing is ever constructed but the values below.
Aliases are refused: the format does not use them, and they are how a small text becomes a large
value. Plain scalars mean what the core schema of YAML 1.2 says (`yes` and `12:30` are text).
"""

import re
from collections.abc import Iterator
from typing import Any, Final, cast

import yaml

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values.tree import Tagged, Tree, Unquoted, malformed

MAX_YAML_BYTES: Final = 2**20
MAX_YAML_DEPTH: Final = 100
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,20}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OTHER_BASE: Final = re.compile(r"0b[01]{1,64}|0o[0-7]{1,22}|0x[0-9a-fA-F]{1,16}")
_NULL: Final = {"", "~", "null", "Null", "NULL"}
_TRUTH: Final = {
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}
_STANDARD_TEXT: Final = "tag:yaml.org,2002:str"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def decode_yaml(data: bytes | memoryview) -> Tree:
    """Parse one document, or nothing as an empty map; all else is a `FormatError`."""
    if len(data) > MAX_YAML_BYTES:
        raise malformed(f"{len(data)} bytes are more than the {MAX_YAML_BYTES} allowed")
    try:
        text = str(data, "utf-8")
        events = yaml.parse(text, Loader=_LOADER)
        _expect(events, yaml.StreamStartEvent)
        if isinstance(first := next(events), yaml.StreamEndEvent):
            return {}
        if not isinstance(first, yaml.DocumentStartEvent):
            raise malformed("it does not start as a YAML document")
        tree = _node(next(events), events, MAX_YAML_DEPTH)
        _expect(events, yaml.DocumentEndEvent)
        _expect(events, yaml.StreamEndEvent)
    except UnicodeDecodeError as reason:
        raise malformed(f"it is not UTF-8 ({reason.reason} at byte {reason.start})") from None
    except (yaml.YAMLError, ValueError, OverflowError) as reason:
        raise malformed(f"it is not YAML ({_place(reason)})") from None
    return tree


def encode_yaml(tree: Tree) -> bytes:
    """Write a tree in block style, keys in their order."""
    text: str = yaml.dump(
        tree,
        Dumper=_Dumper,
        allow_unicode=True,
        default_flow_style=False,
        sort_keys=False,
        width=2**31,
    )
    data = text.encode()
    if len(data) > MAX_YAML_BYTES:
        raise InvalidInputError(
            f"the configuration takes {len(data)} bytes, the most is {MAX_YAML_BYTES}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return data


def _expect(events: Iterator[Any], kind: type) -> None:
    event = next(events, None)
    if not isinstance(event, kind):
        raise malformed("it is not exactly one YAML document")


def _node(event: Any, events: Iterator[Any], depth_left: int) -> Tree:
    if depth_left == 0:
        raise malformed(f"it is nested deeper than {MAX_YAML_DEPTH} levels")
    tag: str | None = getattr(event, "tag", None)
    content: Tree
    match event:
        case yaml.ScalarEvent():
            is_text = event.style or tag == _STANDARD_TEXT
            content = event.value if is_text else _plain(event.value)
        case yaml.SequenceStartEvent():
            content = []
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                content.append(_node(event, events, depth_left - 1))
        case yaml.MappingStartEvent():
            content = {}
            while not isinstance(event := next(events), yaml.MappingEndEvent):
                key = _key(event)
                if key in content:
                    raise malformed(f"the key {key!r} appears twice")
                content[key] = _node(next(events), events, depth_left - 1)
        case _:
            raise malformed("it uses an alias")
    if tag is not None and tag.startswith("!") and len(tag) > 1:
        return Tagged(tag[1:], content)
    return content


def _key(event: Any) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise malformed("a key is not text")
    return str(event.value)


def _plain(text: str) -> Tree:
    if text in _NULL:
        return None
    if text in _TRUTH:
        return Unquoted(text, _TRUTH[text])
    if _INTEGER.fullmatch(text):
        return Unquoted(text, int(text))
    if _OTHER_BASE.fullmatch(text):
        return Unquoted(text, int(text, 0))
    if _FLOAT.fullmatch(text):
        return Unquoted(text, float(text))
    return text


def _place(reason: Exception) -> str:
    mark = getattr(reason, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "unreadable"


class _Dumper(yaml.SafeDumper):
    """Writes tags, and quotes text that some reader could take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        # Only double quotes carry every character: other styles fold some line breaks.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(_STANDARD_TEXT, text, style=style)

    def represent_tagged(self, tagged: Tagged) -> yaml.Node:
        node: Any = self.represent_data(tagged.content)
        if isinstance(tagged.content, str) and _plain(tagged.content) != tagged.content:
            node.style = "'"
        node.tag = f"!{tagged.name}"
        return cast("yaml.Node", node)

    def choose_scalar_style(self) -> str:
        # The library quotes every scalar with a tag; a number must stay a number.
        event: Any = self.event
        implicit = event.implicit
        if event.tag is not None and event.tag.startswith("!"):
            event.implicit = (True, implicit[1])
        try:
            return str(super().choose_scalar_style())
        finally:
            event.implicit = implicit


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(Tagged, _Dumper.represent_tagged)
for _pattern in (_INTEGER, _FLOAT, _OTHER_BASE):
    # The library quotes what YAML 1.1 resolves; these are what YAML 1.2 resolves besides.
    _Dumper.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(f"^(?:{_pattern.pattern})$"), list("-+.0123456789")
    )
