"""The transactions: sessions, commits, rebase, refs and history."""
