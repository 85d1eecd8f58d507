"""All pages for members and admins of organisations."""

from typing import Final

from icefloe.service.pages import (
    audit,
    buckets,
    decisions,
    embargoes,
    offers,
    organisations,
    policies,
    tokens,
)

ROUTERS: Final = (
    organisations.router,
    tokens.router,
    buckets.router,
    policies.router,
    offers.router,
    embargoes.router,
    decisions.router,
    audit.router,
)
