"""The layout of manifests: survey it, propose a better layout, rewrite it."""
