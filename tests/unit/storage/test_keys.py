import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.storage.keys import check_key, decode_key, encode_key, encode_prefix, is_temporary

# Found by creating branches of such names with the reference on a local file system.
ENCODED = '"#%*<>?[\\]^`{|}~' + "".join(map(chr, range(1, 32))) + "\x7f\x80ñ€"
KEPT = "!$&'()+,-.0123456789:;=@ABC_abc "


@pytest.mark.parametrize("character", ENCODED)
def test_characters_that_are_encoded(character: str) -> None:
    percent = "".join(f"%{byte:02X}" for byte in character.encode())
    assert encode_key(f"refs/branch.x{character}y/ref.json") == f"refs/branch.x{percent}y/ref.json"


@pytest.mark.parametrize("character", KEPT)
def test_characters_that_are_kept(character: str) -> None:
    assert encode_key(f"x{character}y") == f"x{character}y"


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b", "\ud800"]
)
def test_refused_keys(key: str) -> None:
    with pytest.raises(InvalidInputError):
        check_key(key)
    with pytest.raises(InvalidInputError):
        encode_key(key)


@pytest.mark.parametrize("key", ["a", "a.b", "...", "a/..b", ".a", "a./b", "#12", "a#12"])
def test_allowed_keys(key: str) -> None:
    check_key(key)
    assert decode_key(encode_key(key)) == key


def test_no_key_looks_like_a_temporary_file() -> None:
    assert is_temporary("repo#0")
    assert is_temporary("refs/x#123456")
    assert not is_temporary(encode_key("repo#0"))
    assert not is_temporary("#x")


@pytest.mark.slow
@given(st.text(min_size=1))
def test_encoding_is_reversible_and_plain(key: str) -> None:
    try:
        encoded = encode_key(key)
    except InvalidInputError:
        return
    assert decode_key(encoded) == key
    assert encoded.isascii()
    assert encoded.isprintable()
    assert not is_temporary(encoded)
    assert encode_prefix(key) == encoded


@given(st.text())
def test_decoding_gives_nothing_or_what_encodes_back(name: str) -> None:
    key = decode_key(name)
    if key is not None and name:
        assert encode_prefix(key) == name


def test_checking_takes_no_more_than_a_pass_over_the_key() -> None:
    """A pattern that backtracks would not end on these."""
    assert encode_key("a" * 100_000 + "#") == "a" * 100_000 + "%23"
    assert encode_key("a/" * 50_000 + "#") == "a/" * 50_000 + "%23"
