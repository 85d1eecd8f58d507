"""Sessions: changes on top of a snapshot, and how a commit, a rebase or a merge publishes them."""
