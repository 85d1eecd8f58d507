"""A short soak; `make soak` runs a long one."""

from pathlib import Path

import pytest

from tests.soak.places import local_place, s3_place
from tests.soak.run import soak
from tests.support.servers import S3Endpoint

ACTIONS = 60


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("spec_version", [1, 2])
def test_local(tmp_path: Path, spec_version: int) -> None:
    place = local_place(tmp_path / "repository")
    outcome = soak(place, tmp_path, spec_version=spec_version, actions=ACTIONS)
    assert outcome.problems == [], outcome.summary


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.server
@pytest.mark.parametrize("spec_version", [1, 2])
def test_s3(s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path, spec_version: int) -> None:
    with s3_place(s3_endpoint, prefix) as place:
        outcome = soak(place, tmp_path, spec_version=spec_version, actions=ACTIONS)
    assert outcome.problems == [], outcome.summary
