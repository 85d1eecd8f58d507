"""All pages for members and admins of organisations."""

from typing import Final

from icefloe.service.pages import audit, buckets, decisions, organisations, policies, tokens

ROUTERS: Final = (
    organisations.router,
    tokens.router,
    buckets.router,
    policies.router,
    decisions.router,
    audit.router,
)
