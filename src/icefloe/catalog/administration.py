"""Calls for the administration of a service: organisations, buckets, policies, listings, audit.

In the examples, `client` acts for an admin of the organisation `lab`, `operator` for somebody who
runs the service.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from icefloe.catalog.handles import checked_name
from icefloe.catalog.model import (
    AccessRequest,
    Bucket,
    Embargo,
    Job,
    Listing,
    Member,
    Organisation,
    Person,
    Policy,
    PolicyScope,
    Role,
    Subscription,
    Token,
    TokenScope,
)
from icefloe.catalog.transport import Transport, error_of
from icefloe.catalog.wire import (
    Access,
    AuditEntry,
    AuditHead,
    BucketCredential,
    BucketCredentialRequest,
    BucketSettings,
    CreatedInvitation,
    CreatedToken,
    EmbargoSettings,
    FollowAnswer,
    ListingSettings,
    MemberRole,
    NewAccessRequest,
    NewBucket,
    NewDelegation,
    NewInvitation,
    NewListing,
    NewMemberInvitation,
    NewOrganisation,
    NewServiceAccount,
    NewSubscription,
    NewToken,
    OrganisationChange,
    OwnershipProof,
    Page,
    PolicySettings,
    PolicyTrial,
    PolicyVersionAnswer,
    ProbeReport,
    Problem,
    ReleaseAnswer,
    RequestDecision,
    RequestProposal,
    SimulationAnswer,
    SubscriptionDecision,
    Suspension,
)
from icefloe.effects import AsyncCloseableIterator, blocking, sleep
from icefloe.errors import ErrorKind, InvalidInputError

_PAGE = 1000
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_FAILED = 500

type TellProgress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""


class Administration:
    """The methods of a client by which people manage a service."""

    _transport: Transport

    async def _list[T](self, kind: type[T], path: str, **params: Any) -> list[T]:
        """Return all entries of a list, page after page."""
        entries: list[T] = []
        query = {name: value for name, value in params.items() if value is not None}
        query["limit"] = _PAGE
        while True:
            page: Page[T] = await self._transport.call(
                Page[kind],  # type: ignore[valid-type]
                "GET",
                path,
                params=query,
            )
            entries += page.items
            if page.next is None:
                return entries
            query["cursor"] = page.next

    # -- organisations ---------------------------------------------------------------------

    async def list_orgs_async(self) -> list[Organisation]:
        """List the organisations that the caller is a member of."""
        return await self._list(Organisation, "/orgs")

    list_orgs = blocking(list_orgs_async)

    async def create_org_async(self, name: str, *, display_name: str = "") -> Organisation:
        """Create an organisation; the caller becomes its first admin."""
        new = NewOrganisation(name, display_name)
        return await self._transport.create(Organisation, "/orgs", new)

    create_org = blocking(create_org_async)

    async def show_org_async(self, name: str) -> Organisation:
        """Return an organisation."""
        return await self._transport.call(Organisation, "GET", f"/orgs/{_part(name)}")

    show_org = blocking(show_org_async)

    async def change_org_async(self, name: str, *, display_name: str) -> Organisation:
        """Change the name under which an organisation is shown."""
        change = OrganisationChange(display_name)
        return await self._transport.call(Organisation, "PATCH", f"/orgs/{_part(name)}", change)

    change_org = blocking(change_org_async)

    async def delete_org_async(self, name: str, *, confirm: str) -> None:
        """Delete an organisation and all that the service keeps of it; stored data stays.

        `confirm` is its name once more.
        """
        path = f"/orgs/{_part(name)}"
        await self._transport.call(type(None), "DELETE", path, params={"confirm": confirm})

    delete_org = blocking(delete_org_async)

    # -- members ---------------------------------------------------------------------------

    async def list_members_async(self, organisation: str) -> list[Member]:
        """List the members of an organisation."""
        return await self._list(Member, f"/orgs/{_part(organisation)}/members")

    list_members = blocking(list_members_async)

    async def set_member_async(self, organisation: str, person: str, *, role: str) -> Member:
        """Set the role of somebody in an organisation: `reader`, `writer` or `admin`."""
        path = f"/orgs/{_part(organisation)}/members/{_part(person)}"
        return await self._transport.call(Member, "PUT", path, MemberRole(chosen(Role, role)))

    set_member = blocking(set_member_async)

    async def remove_member_async(self, organisation: str, person: str) -> None:
        """Take somebody out of an organisation; no credential is made for them from now on."""
        path = f"/orgs/{_part(organisation)}/members/{_part(person)}"
        await self._transport.call(type(None), "DELETE", path)

    remove_member = blocking(remove_member_async)

    async def invite_member_async(
        self, organisation: str, *, role: str = "reader", person: str | None = None
    ) -> CreatedInvitation:
        """Invite somebody who has no account yet to an organisation.

        The answer has a link that works once, for three days, and is shown this once: send it to
        the person. Set the role of people who have an account with `set_member`.

        Args:
            organisation: its name.
            role: `reader`, `writer` or `admin`.
            person: the name of the new account; the invited person chooses if not given.

        >>> invitation = client.invite_member("lab", role="writer", person="dora")
        >>> invitation.link
        'http://127.0.0.1:.../join/...'
        >>> invitation
        CreatedInvitation(link='***', expires_at=datetime.datetime(...))
        """
        path = f"/orgs/{_part(organisation)}/invitations"
        new = NewMemberInvitation(chosen(Role, role), person)
        return await self._transport.create(CreatedInvitation, path, new)

    invite_member = blocking(invite_member_async)

    async def invite_person_async(
        self, *, person: str | None = None, operator: bool = False
    ) -> CreatedInvitation:
        """Invite somebody to the service; only operators may.

        The answer has a link that works once, for three days, and is shown this once.

        Args:
            person: the name of the new account; the invited person chooses if not given.
            operator: whether they are to run the service, too.

        >>> invitation = operator.invite_person(person="emil")
        >>> operator.url in invitation.link
        True
        """
        new = NewInvitation(person, operator)
        return await self._transport.create(CreatedInvitation, "/invitations", new)

    invite_person = blocking(invite_person_async)

    async def list_service_accounts_async(self, organisation: str) -> list[Person]:
        """List the service accounts of an organisation."""
        return await self._list(Person, f"/orgs/{_part(organisation)}/service-accounts")

    list_service_accounts = blocking(list_service_accounts_async)

    async def create_service_account_async(
        self, organisation: str, name: str, *, role: str, display_name: str = ""
    ) -> Person:
        """Create a service account: a person without a login, in whose name tokens act."""
        path = f"/orgs/{_part(organisation)}/service-accounts"
        new = NewServiceAccount(name, chosen(Role, role), display_name)
        return await self._transport.create(Person, path, new)

    create_service_account = blocking(create_service_account_async)

    async def disable_service_account_async(self, organisation: str, name: str) -> None:
        """Disable a service account for good; all its tokens end at once."""
        path = f"/orgs/{_part(organisation)}/service-accounts/{_part(name)}"
        await self._transport.call(type(None), "DELETE", path)

    disable_service_account = blocking(disable_service_account_async)

    # -- tokens ----------------------------------------------------------------------------

    async def list_tokens_async(self) -> list[Token]:
        """List one's tokens, without their secrets."""
        return await self._list(Token, "/me/tokens")

    list_tokens = blocking(list_tokens_async)

    async def create_token_async(
        self,
        name: str,
        *,
        actions: Sequence[str] = ("read",),
        repositories: Sequence[str] = ("*/*",),
        days: int = 90,
        service_account: tuple[str, str] | None = None,
    ) -> CreatedToken:
        """Create a token; its secret is in this answer only.

        Args:
            name: what it is for.
            actions: `read`, `write`, `admin`, or single actions.
            repositories: like `lab/sst`, `lab/*` or `*/*`.
            days: how long it lives.
            service_account: organisation and name, for a token that acts in that name.
        """
        new = NewToken(name, TokenScope(tuple(actions), tuple(repositories)), days)
        path = "/me/tokens"
        if service_account is not None:
            organisation, account = map(_part, service_account)
            path = f"/orgs/{organisation}/service-accounts/{account}/tokens"
        return await self._transport.create(CreatedToken, path, new)

    create_token = blocking(create_token_async)

    async def create_job_token_async(
        self, repository: str, name: str, *, access: str = "read", hours: int = 24
    ) -> CreatedToken:
        """Create a token for a job: it opens one repository, and does nothing else.

        Its secret is in this answer only. It ends no later than the token of this client.

        Args:
            repository: `org/name`.
            name: what it is for.
            access: `read` or `write`.
            hours: how long it lives.

        >>> token = client.create_job_token("lab/sst", "monthly means", hours=2)
        >>> job = icefloe.Client(client.url, token=token.secret)
        >>> job.show_repo("lab/sst").full_name
        'lab/sst'
        >>> job.list_members("lab")
        Traceback (most recent call last):
        icefloe.errors.AccessDeniedError: ...
        """
        path = f"/repos/{checked_name(repository)}/tokens"
        new = NewDelegation(chosen(Access, access), name, hours)
        return await self._transport.create(CreatedToken, path, new)

    create_job_token = blocking(create_job_token_async)

    async def revoke_token_async(self, token_id: str) -> None:
        """End a token at once."""
        await self._transport.call(type(None), "DELETE", f"/me/tokens/{_part(token_id)}")

    revoke_token = blocking(revoke_token_async)

    # -- buckets ---------------------------------------------------------------------------

    async def list_buckets_async(self, organisation: str) -> list[Bucket]:
        """List the buckets of an organisation."""
        return await self._list(Bucket, f"/orgs/{_part(organisation)}/buckets")

    list_buckets = blocking(list_buckets_async)

    async def register_bucket_async(
        self, organisation: str, name: str, settings: BucketSettings
    ) -> Bucket:
        """Register a bucket; it is unproven until it is probed."""
        new = NewBucket(name=name, **_fields(settings))
        return await self._transport.create(Bucket, f"/orgs/{_part(organisation)}/buckets", new)

    register_bucket = blocking(register_bucket_async)

    async def show_bucket_async(self, organisation: str, name: str) -> Bucket:
        """Return a bucket, without its secrets."""
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}"
        return await self._transport.call(Bucket, "GET", path)

    show_bucket = blocking(show_bucket_async)

    async def change_bucket_async(
        self,
        organisation: str,
        name: str,
        settings: BucketSettings,
        *,
        if_version: int | None = None,
    ) -> Bucket:
        """Change the settings of a bucket; it is unproven until it is probed again.

        Secrets stay as they are if the settings have none.
        """
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}"
        return await self._transport.call(Bucket, "PUT", path, settings, if_version=if_version)

    change_bucket = blocking(change_bucket_async)

    async def delete_bucket_async(self, organisation: str, name: str) -> None:
        """Remove a bucket without repositories from the service; stored data stays."""
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}"
        await self._transport.call(type(None), "DELETE", path)

    delete_bucket = blocking(delete_bucket_async)

    async def probe_bucket_async(self, organisation: str, name: str) -> ProbeReport:
        """Ask the service to test whether a bucket's credentials allow only their own folder."""
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}/probe"
        return await self._transport.call(ProbeReport, "POST", path)

    probe_bucket = blocking(probe_bucket_async)

    async def bucket_ownership_async(self, organisation: str, name: str) -> OwnershipProof:
        """Return what proves that a bucket is the organisation's own.

        The trust policy of a role must demand `external_id`. The owner of a public bucket writes
        the text `challenge` to the object `challenge_key`, and probes the bucket.

        >>> proof = client.bucket_ownership("lab", "main")
        >>> proof.challenge_key
        '.../lab/.icefloe-challenge'
        """
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}/ownership"
        return await self._transport.call(OwnershipProof, "GET", path)

    bucket_ownership = blocking(bucket_ownership_async)

    async def suspend_bucket_async(self, organisation: str, name: str) -> Suspension:
        """Cut a bucket off: no further credential is made for it, for anybody.

        Credentials that were made before may live until `issued_until`.

        >>> suspension = client.suspend_bucket("lab", "spare")
        >>> suspension.bucket.state
        <BucketState.SUSPENDED: 'suspended'>
        >>> client.resume_bucket("lab", "spare").state
        <BucketState.UNPROVEN: 'unproven'>
        """
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}/suspend"
        return await self._transport.call(Suspension, "POST", path)

    suspend_bucket = blocking(suspend_bucket_async)

    async def resume_bucket_async(self, organisation: str, name: str) -> Bucket:
        """End the suspension of a bucket; it is unproven until it is probed.

        >>> suspension = client.suspend_bucket("lab", "spare")
        >>> client.resume_bucket("lab", "spare").state_reason
        'no probe has run since it was suspended'
        """
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}/resume"
        return await self._transport.call(Bucket, "POST", path)

    resume_bucket = blocking(resume_bucket_async)

    async def bucket_credentials_async(
        self, organisation: str, name: str, *, prefix: str = "", access: str = "read"
    ) -> BucketCredential:
        """Return a short-lived credential for a bucket or a folder of it, to list its files say.

        Args:
            organisation: its name.
            name: the name under which it registered the bucket.
            prefix: the folder, below the prefix of the bucket.
            access: `read`, for writers; or `write`, for admins.

        >>> made = client.bucket_credentials("lab", "main", prefix="raw/")
        >>> made.credential.kind, sorted(made.credential.values)
        ('s3', ['access_key_id', 'secret_access_key', 'session_token'])
        >>> made.is_scoped
        True
        """
        path = f"/orgs/{_part(organisation)}/buckets/{_part(name)}/credentials"
        body = BucketCredentialRequest(chosen(Access, access), prefix)
        return await self._transport.call(BucketCredential, "POST", path, body)

    bucket_credentials = blocking(bucket_credentials_async)

    # -- policies --------------------------------------------------------------------------

    async def list_policies_async(self, organisation: str) -> list[Policy]:
        """List the policies on the buckets of an organisation."""
        return await self._list(Policy, f"/orgs/{_part(organisation)}/policies")

    list_policies = blocking(list_policies_async)

    async def show_policy_async(self, organisation: str, policy_id: str) -> Policy:
        """Return a policy."""
        path = f"/orgs/{_part(organisation)}/policies/{_part(policy_id)}"
        return await self._transport.call(Policy, "GET", path)

    show_policy = blocking(show_policy_async)

    async def create_policy_async(
        self,
        organisation: str,
        *,
        bucket: str,
        prefix: str = "",
        scope: str = "organisation",
        shared_with: Sequence[str] = (),
        embargoed_until: datetime | None = None,
        ends_at: datetime | None = None,
        confirm_prefix: str | None = None,
    ) -> Policy:
        """Allow reading virtual chunks below a prefix, for the organisation or for `anyone`.

        For `anyone`, `confirm_prefix` is the whole prefix once more, like `s3://bucket/folder/`.
        `shared_with` names other organisations whose members may read, too.
        """
        settings = PolicySettings(
            bucket,
            prefix,
            chosen(PolicyScope, scope),
            embargoed_until,
            ends_at,
            tuple(shared_with),
            confirm_prefix,
        )
        path = f"/orgs/{_part(organisation)}/policies"
        return await self._transport.create(Policy, path, settings)

    create_policy = blocking(create_policy_async)

    async def change_policy_async(
        self,
        organisation: str,
        policy_id: str,
        settings: PolicySettings,
        *,
        if_version: int | None = None,
    ) -> Policy:
        """Replace a policy."""
        path = f"/orgs/{_part(organisation)}/policies/{_part(policy_id)}"
        return await self._transport.call(Policy, "PUT", path, settings, if_version=if_version)

    change_policy = blocking(change_policy_async)

    async def delete_policy_async(self, organisation: str, policy_id: str) -> None:
        """Delete a policy: no credential is made by it from now on."""
        path = f"/orgs/{_part(organisation)}/policies/{_part(policy_id)}"
        await self._transport.call(type(None), "DELETE", path)

    delete_policy = blocking(delete_policy_async)

    async def policy_history_async(
        self, organisation: str, policy_id: str
    ) -> list[PolicyVersionAnswer]:
        """List the versions of a policy, oldest first; also of one that was deleted."""
        path = f"/orgs/{_part(organisation)}/policies/{_part(policy_id)}/history"
        return await self._list(PolicyVersionAnswer, path)

    policy_history = blocking(policy_history_async)

    async def undo_policy_async(self, organisation: str, policy_id: str) -> Policy:
        """Put a policy back to the version before the last one; a deleted one comes back."""
        path = f"/orgs/{_part(organisation)}/policies/{_part(policy_id)}/undo"
        return await self._transport.call(Policy, "POST", path)

    undo_policy = blocking(undo_policy_async)

    async def simulate_policy_async(
        self,
        organisation: str,
        settings: PolicySettings | None = None,
        *,
        policy_id: str | None = None,
    ) -> SimulationAnswer:
        """Return who would gain and lose access by a change of a policy; nothing is changed.

        Without `settings` it is a deletion, without `policy_id` a new policy.
        """
        path = f"/orgs/{_part(organisation)}/policy-simulations"
        trial = PolicyTrial(settings, policy_id)
        return await self._transport.call(SimulationAnswer, "POST", path, trial)

    simulate_policy = blocking(simulate_policy_async)

    # -- listings and subscriptions --------------------------------------------------------

    async def list_listings_async(
        self, organisation: str | None = None, *, search: str | None = None
    ) -> list[Listing]:
        """List what is offered to the caller, and what the caller's organisations offer."""
        return await self._list(Listing, "/listings", org=organisation, search=search)

    list_listings = blocking(list_listings_async)

    async def create_listing_async(
        self, organisation: str, name: str, settings: ListingSettings
    ) -> Listing:
        """Offer a repository, or a part of it, to other organisations."""
        new = NewListing(name=name, **_fields(settings))
        return await self._transport.create(Listing, f"/orgs/{_part(organisation)}/listings", new)

    create_listing = blocking(create_listing_async)

    async def show_listing_async(self, organisation: str, name: str) -> Listing:
        """Return a listing with its licence and its terms."""
        path = f"/listings/{_part(organisation)}/{_part(name)}"
        return await self._transport.call(Listing, "GET", path)

    show_listing = blocking(show_listing_async)

    async def change_listing_async(
        self,
        organisation: str,
        name: str,
        settings: ListingSettings,
        *,
        if_version: int | None = None,
    ) -> Listing:
        """Replace a listing; subscriptions stay, and what they read follows the new settings."""
        path = f"/listings/{_part(organisation)}/{_part(name)}"
        return await self._transport.call(Listing, "PUT", path, settings, if_version=if_version)

    change_listing = blocking(change_listing_async)

    async def delete_listing_async(self, organisation: str, name: str) -> None:
        """Delete a listing with all subscriptions to it."""
        path = f"/listings/{_part(organisation)}/{_part(name)}"
        await self._transport.call(type(None), "DELETE", path)

    delete_listing = blocking(delete_listing_async)

    async def list_subscriptions_async(
        self, organisation: str, *, state: str | None = None
    ) -> list[Subscription]:
        """List the subscriptions of an organisation, and those of others to its listings."""
        path = f"/orgs/{_part(organisation)}/subscriptions"
        return await self._list(Subscription, path, state=state)

    list_subscriptions = blocking(list_subscriptions_async)

    async def subscribe_async(self, organisation: str, new: NewSubscription) -> Subscription:
        """Subscribe an organisation to a listing, and accept its licence and terms."""
        path = f"/orgs/{_part(organisation)}/subscriptions"
        return await self._transport.create(Subscription, path, new)

    subscribe = blocking(subscribe_async)

    async def show_subscription_async(
        self, organisation: str, subscription_id: str
    ) -> Subscription:
        """Return a subscription of an organisation, or one to its listings."""
        path = f"/orgs/{_part(organisation)}/subscriptions/{_part(subscription_id)}"
        return await self._transport.call(Subscription, "GET", path)

    show_subscription = blocking(show_subscription_async)

    async def decide_subscription_async(
        self,
        organisation: str,
        subscription_id: str,
        decision: SubscriptionDecision,
        *,
        if_version: int | None = None,
    ) -> Subscription:
        """Grant or decline a subscription to a listing of the organisation."""
        path = f"/orgs/{_part(organisation)}/subscriptions/{_part(subscription_id)}/decision"
        return await self._transport.call(
            Subscription, "POST", path, decision, if_version=if_version
        )

    decide_subscription = blocking(decide_subscription_async)

    async def end_subscription_async(
        self, organisation: str, subscription_id: str, *, if_version: int | None = None
    ) -> Subscription:
        """End a subscription, as its subscriber or as its provider."""
        path = f"/orgs/{_part(organisation)}/subscriptions/{_part(subscription_id)}"
        return await self._transport.call(Subscription, "DELETE", path, if_version=if_version)

    end_subscription = blocking(end_subscription_async)

    async def update_subscription_async(
        self, organisation: str, subscription_id: str, *, progress: TellProgress | None = None
    ) -> FollowAnswer:
        """Bring the repository of a filtered subscription to the provider's newest version.

        Wait until that is done; `progress` is called with the number of arrays done, and of all.
        """
        job = await self.begin_update_async(organisation, subscription_id)
        return await self._report_of(FollowAnswer, job, progress)

    update_subscription = blocking(update_subscription_async)

    async def begin_update_async(self, organisation: str, subscription_id: str) -> Job:
        """Begin an update of a filtered subscription, in the background; return the job."""
        path = f"/orgs/{_part(organisation)}/subscriptions/{_part(subscription_id)}/update"
        return await self._transport.call(Job, "POST", path)

    begin_update = blocking(begin_update_async)

    # -- rolling embargoes -----------------------------------------------------------------

    async def show_embargo_async(self, repository: str) -> Embargo:
        """Return the rolling embargo of a repository."""
        path = f"/repos/{checked_name(repository)}/embargo"
        return await self._transport.call(Embargo, "GET", path)

    show_embargo = blocking(show_embargo_async)

    async def set_embargo_async(
        self, repository: str, settings: EmbargoSettings, *, if_version: int | None = None
    ) -> Embargo:
        """Set a rolling embargo: data of a repository becomes public when it is old enough."""
        path = f"/repos/{checked_name(repository)}/embargo"
        return await self._transport.call(Embargo, "PUT", path, settings, if_version=if_version)

    set_embargo = blocking(set_embargo_async)

    async def delete_embargo_async(self, repository: str) -> None:
        """Release nothing of a repository any more; what is public stays so."""
        path = f"/repos/{checked_name(repository)}/embargo"
        await self._transport.call(type(None), "DELETE", path)

    delete_embargo = blocking(delete_embargo_async)

    async def release_embargo_async(
        self, repository: str, *, progress: TellProgress | None = None
    ) -> ReleaseAnswer:
        """Make public what is old enough now; doing it again changes nothing.

        Wait until that is done; `progress` is called with the number of chunks done, and of all.
        """
        job = await self.begin_release_async(repository)
        return await self._report_of(ReleaseAnswer, job, progress)

    release_embargo = blocking(release_embargo_async)

    async def begin_release_async(self, repository: str) -> Job:
        """Begin to make public what is old enough, in the background; return the job."""
        path = f"/repos/{checked_name(repository)}/embargo/release"
        return await self._transport.call(Job, "POST", path)

    begin_release = blocking(begin_release_async)

    # -- jobs --------------------------------------------------------------------------------

    async def list_jobs_async(self, organisation: str, *, state: str | None = None) -> list[Job]:
        """List the jobs of an organisation, the oldest first."""
        return await self._list(Job, f"/orgs/{_part(organisation)}/jobs", state=state)

    list_jobs = blocking(list_jobs_async)

    async def show_job_async(self, organisation: str, job_id: str) -> Job:
        """Return how far a job is, its report, or why it failed."""
        path = f"/orgs/{_part(organisation)}/jobs/{_part(job_id)}"
        return await self._transport.call(Job, "GET", path)

    show_job = blocking(show_job_async)

    async def wait_for_job_async(self, job: Job, *, progress: TellProgress | None = None) -> Job:
        """Wait until a job is over, and return it; a job that failed raises its error."""
        pause = _FIRST_PAUSE_SECONDS
        while not job.is_over:
            await sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            job = await self.show_job_async(job.organisation, job.id)
            if progress is not None and job.total is not None:
                progress(job.done, job.total)
        if job.error is not None:
            raise error_of(Problem(job.error_code or "", job.error, job.id), _FAILED)
        return job

    wait_for_job = blocking(wait_for_job_async)

    async def _report_of[T](self, kind: type[T], job: Job, progress: TellProgress | None) -> T:
        ended = await self.wait_for_job_async(job, progress=progress)
        return msgspec.convert(ended.report, kind, strict=False)

    # -- access requests -------------------------------------------------------------------

    async def ask_for_access_async(
        self, repository: str, *, container: str | None = None, message: str = ""
    ) -> list[AccessRequest]:
        """Ask for what was missing when a repository was last opened.

        The owner of each missing container gets a request; asking again changes nothing.
        """
        path = f"/repos/{checked_name(repository)}/requests"
        new = NewAccessRequest(container, message)
        return list((await self._transport.create(Page[AccessRequest], path, new)).items)

    ask_for_access = blocking(ask_for_access_async)

    async def list_requests_async(
        self, organisation: str | None = None, *, state: str | None = None
    ) -> list[AccessRequest]:
        """List requests: one's own, or those that the admins of an organisation decide about."""
        path = "/me/requests" if organisation is None else f"/orgs/{_part(organisation)}/requests"
        return await self._list(AccessRequest, path, state=state)

    list_requests = blocking(list_requests_async)

    async def withdraw_request_async(self, request_id: str) -> AccessRequest:
        """Withdraw a request that waits for an answer."""
        return await self._transport.call(
            AccessRequest, "DELETE", f"/me/requests/{_part(request_id)}"
        )

    withdraw_request = blocking(withdraw_request_async)

    async def show_request_async(self, organisation: str, request_id: str) -> RequestProposal:
        """Return a request, what is missing, and who would gain access by a grant."""
        path = f"/orgs/{_part(organisation)}/requests/{_part(request_id)}"
        return await self._transport.call(RequestProposal, "GET", path)

    show_request = blocking(show_request_async)

    async def decide_request_async(
        self, organisation: str, request_id: str, decision: RequestDecision
    ) -> AccessRequest:
        """Grant a request by the policy that was proposed, or a changed one; or decline it."""
        path = f"/orgs/{_part(organisation)}/requests/{_part(request_id)}/decision"
        return await self._transport.call(AccessRequest, "POST", path, decision)

    decide_request = blocking(decide_request_async)

    # -- the audit -------------------------------------------------------------------------

    def audit(
        self, organisation: str | None = None, *, before: int | None = None
    ) -> AsyncCloseableIterator[AuditEntry]:
        """Iterate over what was done, the newest first: in an organisation, or on the service.

        For plain loops and for `async for`; pages are fetched as the loop goes on. With `before`,
        only entries with lower numbers.
        """
        path = "/audit" if organisation is None else f"/orgs/{_part(organisation)}/audit"
        return AsyncCloseableIterator(self._audit(path, before))

    async def _audit(self, path: str, before: int | None) -> AsyncIterator[AuditEntry]:
        query: dict[str, Any] = {"limit": _PAGE}
        if before is not None:
            query["before"] = before
        while True:
            page = await self._transport.call(Page[AuditEntry], "GET", path, params=query)
            for entry in page.items:
                yield entry
            if len(page.items) < _PAGE:
                return
            query["before"] = page.items[-1].number

    async def verify_audit_async(self) -> AuditHead:
        """Ask the service to check its audit for changes, and return the last entry."""
        return await self._transport.call(AuditHead, "GET", "/audit/verify")

    verify_audit = blocking(verify_audit_async)


def chosen[E: StrEnum](kind: type[E], text: str) -> E:
    """Return the member of an enumeration that a text names; raise `InvalidInputError` if none.

    >>> chosen(Role, "writer")
    <Role.WRITER: 'writer'>
    """
    try:
        return kind(text)
    except ValueError:
        problem = f"{text!r} is no {kind.__name__.lower()}: there are {', '.join(kind)}"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None


def _fields(settings: BucketSettings | ListingSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def _part(name: str) -> str:
    """Return a name as a part of a path."""
    from urllib.parse import quote

    return quote(name, safe="")
