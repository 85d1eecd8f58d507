import pickle
from pathlib import Path

from icefloe.config import RepositoryConfig
from icefloe.effects import run_blocking
from icefloe.repo import lifecycle
from icefloe.storage import Storage


def test_copies_of_one_description_share_clients_and_caches(tmp_path: Path) -> None:
    storage = Storage.new_local_filesystem(str(tmp_path / "repo"))
    context = run_blocking(lifecycle.create(storage))
    one, other = (pickle.loads(pickle.dumps(context)) for _ in range(2))
    assert one is other
    assert one is not context
    assert run_blocking(one.ledger.branches()) == run_blocking(context.ledger.branches())


def test_copies_of_other_settings_are_apart(tmp_path: Path) -> None:
    storage = Storage.new_local_filesystem(str(tmp_path / "repo"))
    context = run_blocking(lifecycle.create(storage))
    changed = run_blocking(lifecycle.reopen(context, RepositoryConfig(max_concurrent_requests=3)))
    one, other = pickle.loads(pickle.dumps(context)), pickle.loads(pickle.dumps(changed))
    assert (one.config.max_concurrent_requests, other.config.max_concurrent_requests) == (256, 3)
