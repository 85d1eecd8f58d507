"""Sessions to test the Zarr store with, without the classes that users see."""

import json
from dataclasses import dataclass
from typing import Any

from icefloe.effects import run_blocking
from icefloe.repo.context import RepoContext
from icefloe.repo.lifecycle import create
from icefloe.storage import Storage
from icefloe.transactions.commit import commit
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode, SessionState, open_session
from icefloe.zarr_store import IcechunkStore

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def array_document(shape: tuple[int, ...], **attributes: Any) -> bytes:
    """Write the metadata of an array with chunks of one byte."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": attributes,
        }
    ).encode()


@dataclass(eq=False)
class Owner:
    """Stands for the session object of users."""

    state: SessionState

    @property
    def store(self) -> IcechunkStore:
        return IcechunkStore(self.state, self)


def new_repository(storage: Storage, spec_version: int = 2) -> RepoContext:
    return run_blocking(create(storage, spec_version=spec_version))


def begin(
    context: RepoContext,
    mode: SessionMode = SessionMode.writable,
    packing: PackingOptions | None = None,
) -> Owner:
    """Begin a session on the tip of main."""
    tip = run_blocking(context.ledger.branch_tip("main"))
    branch = "main" if mode is SessionMode.writable else None
    return Owner(run_blocking(open_session(context, tip, mode, branch=branch, packing=packing)))


def commit_and_begin(
    context: RepoContext, state: SessionState, packing: PackingOptions | None = None
) -> Owner:
    """Commit a session, and begin the next."""
    run_blocking(commit(state, "more", allow_empty=True))
    return begin(context, packing=packing)
