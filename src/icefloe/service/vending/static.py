"""Ways without temporary credentials: public data, and keys that are handed out as they are.

Static keys can do all that their owner may, for as long as they exist. Nothing about them is
scoped, so an admin has to say that they are to be shared, and they never serve anybody but members
of the organisation.
"""

from icefloe.catalog.wire import Access, CredentialAnswer
from icefloe.errors import AccessDeniedError
from icefloe.service.vending.grants import Grant, Secret, check_grant


class StaticVendor:
    """Hands out the keys of a bucket."""

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return the grant: the keys are the same for all prefixes."""
        return (grant,)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return the keys themselves."""
        del external_id
        check_grant(grant)
        if not grant.bucket.shares_static_keys:
            problem = f"the keys of bucket {grant.bucket.name} are not to be shared"
            raise AccessDeniedError(problem)
        return CredentialAnswer("s3", dict(secret.values))


class AnonymousVendor:
    """Serves buckets that everybody may read."""

    def divide(self, grant: Grant) -> tuple[Grant, ...]:
        """Return the grant: nothing is made for it."""
        return (grant,)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        """Return the credential that is none."""
        del external_id, secret
        check_grant(grant)
        if grant.access is Access.WRITE:
            raise AccessDeniedError(f"the bucket {grant.bucket.name} can only be read")
        return CredentialAnswer("anonymous")
