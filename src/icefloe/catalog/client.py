"""The client of a repository service: log in, open repositories by name, create and list them."""

import getpass
import platform
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from icefloe.api.repository import Repository
from icefloe.catalog import model
from icefloe.catalog.administration import Administration, chosen
from icefloe.catalog.handles import (
    Handle,
    checked_name,
    is_service_url,
    parse_service_url,
    service_origin,
)
from icefloe.catalog.leases import Opened, open_lease
from icefloe.catalog.logins import (
    SERVICE_VARIABLE,
    Secret,
    TokenSource,
    current_service,
    forget_login,
    remember_login,
)
from icefloe.catalog.model import RepositoryStatus, Visibility
from icefloe.catalog.transport import Transport
from icefloe.catalog.wire import Access, Me, NewRepository, RepositoryChange
from icefloe.config import RepositoryConfig, SpecVersion
from icefloe.effects import blocking, sleep
from icefloe.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NotLoggedInError,
    ServiceError,
)
from icefloe.forks import renew_lock_in_children
from icefloe.printable import escaped_html
from icefloe.reports import object_html, object_text

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW: Final = "application/vnd.apache.arrow.stream"
_GRANT_TYPE: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_SECONDS: Final = 5  # RFC 8628, section 3.5
_MOST_REMEMBERED: Final = 4
"""How many repositories stay connected between two opens of them."""


class Client(Administration):
    """A repository service: it knows repositories by name, and vends credentials for them.

    Without `url`, it is the service of `ICEFLOE_SERVICE`, or of the last login on this machine.
    The token is the one that is given, the one that `token_command` prints, `ICEFLOE_TOKEN` if
    `ICEFLOE_SERVICE` names this service, or that of `login`. Each method has a twin with the
    ending `_async`, to be awaited. A pickled client has no token: another process looks up its
    own.

    >>> import icefloe
    >>> client = icefloe.Client("https://data.example.org")
    >>> client.url
    'https://data.example.org'
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_command: str | Sequence[str] | None = None,
    ) -> None:
        service = current_service() if url is None else service_origin(url)
        if service is None:
            problem = "no service is named: give its address, like https://data.example.org"
            advice = f"set {SERVICE_VARIABLE}, or log in with `icefloe login ADDRESS`"
            raise InvalidInputError(f"{problem}, {advice}", ErrorKind.NOT_LOGGED_IN)
        self.url: Final = service
        """The address of the service."""
        if token is not None and token_command is not None:
            problem = "token and token_command contradict each other: give one of them"
            raise InvalidInputError(problem, ErrorKind.INVALID_CREDENTIALS)
        self._transport = Transport(service, TokenSource(service, token, token_command))
        self._opened = OrderedDict[Handle, Opened]()
        """The repositories that were opened last."""
        self._lock = threading.Lock()
        renew_lock_in_children(self)

    def __repr__(self) -> str:
        return object_text("Client", {"service": self.url})

    def _repr_html_(self) -> str:
        return object_html("Client", {"service": self.url})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_client, (self.url, self._transport.tokens.token_command))

    # -- login -----------------------------------------------------------------------------

    async def login_async(
        self, *, scope: str | None = None, show: "Callable[[str, str], None] | None" = None
    ) -> Self:
        """Log in, unless a token that is still valid is known; return this client.

        A token that was made for another scope than the given one is replaced.

        Shows a link and a code, and waits until somebody has approved the code on the page of the
        link. The token is kept for later processes of this person.

        Args:
            scope: what the token may be used for: `read`, `write` or `admin`, and repositories
                like `lab/*`, with spaces between; that of a known token, or `write`, if not given.
            show: is called with the link and the code; prints both if not given.
        """
        if await self._is_logged_in(scope):
            return self
        start = await self._start_login(scope or "write")
        (show or _show_code)(start["verification_uri_complete"], start["user_code"])
        token = Secret(await self._wait_for_approval(start))
        self._transport.tokens.use(token)
        person = (await self.whoami_async()).person
        remember_login(self.url, token, person)
        return self

    login = blocking(login_async)

    async def _is_logged_in(self, scope: str | None) -> bool:
        """Return whether there is a token, made for a scope if one is named."""
        if self._transport.tokens.get() is None:
            return False
        try:
            me = await self.whoami_async()
            if scope is None:
                return True
            tokens = await self.list_tokens_async()
        except NotLoggedInError:
            return False
        words = scope.split()
        actions = {word for word in words if "/" not in word} or {"write"}
        repositories = {word for word in words if "/" in word} or {"*/*"}
        return any(
            ({*token.scope.actions}, {*token.scope.repositories}) == (actions, repositories)
            for token in tokens
            if token.id == me.token
        )

    async def _start_login(self, scope: str) -> dict[str, Any]:
        program = f"icefloe of {getpass.getuser()} on {platform.node()}"[:100]
        form = {"client_id": program, "scope": scope}
        status, answer = await self._transport.call_openly("/device/code", form)
        if status != 200:
            problem = f"{self.url} does not let programs log in"
            reason = answer.get("error_description") or answer.get("message") or status
            raise ServiceError(f"{problem}: {reason}", ErrorKind.NOT_LOGGED_IN)
        return answer

    async def _wait_for_approval(self, start: Mapping[str, Any]) -> str:
        """Ask until somebody has approved the code (RFC 8628, section 3.4)."""
        interval = float(start.get("interval", _SLOWER_SECONDS))
        form = {"grant_type": _GRANT_TYPE, "device_code": start["device_code"]}
        while True:
            await sleep(interval)
            status, answer = await self._transport.call_openly("/device/token", form)
            if status == 200:
                return str(answer["access_token"])
            match answer.get("error"):
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval += _SLOWER_SECONDS
                case "access_denied":
                    raise AccessDeniedError("the login was refused on the page of the service")
                case "expired_token":
                    raise NotLoggedInError("nobody approved the code in time: log in again")
                case other:
                    raise ServiceError(f"the login failed: {other or status}")

    async def logout_async(self) -> None:
        """End the token of this login, and forget it."""
        try:
            if self._transport.tokens.get() is not None:
                await self._transport.call(type(None), "DELETE", "/me/token")
        except NotLoggedInError:
            pass  # the token has ended already
        finally:
            self._opened.clear()
            forget_login(self.url)
            self._transport.tokens.use(None)

    logout = blocking(logout_async)

    async def whoami_async(self) -> Me:
        """Return who the service takes the caller for."""
        return await self._transport.call(Me, "GET", "/me")

    whoami = blocking(whoami_async)

    # -- repositories ----------------------------------------------------------------------

    async def get_repo_async(self, name: str, *, access: str = "read") -> Repository:
        """Open a repository by name, with credentials for all that it refers to.

        The repository opens whole, or `AccessDeniedError` names each grant that is missing.
        Credentials renew themselves, in other processes, too.

        Args:
            name: `org/name`.
            access: `read` or `write`.
        """
        return await (await self._open(name, access)).repository()

    get_repo = blocking(get_repo_async)

    async def _open(self, name: str, access: str) -> Opened:
        tokens, chosen_access = self._transport.tokens, chosen(Access, access)
        name = checked_name(name)
        handle = Handle(self.url, name, chosen_access, tokens.token_command, tokens.given_id)
        opened = await open_lease(handle, self._transport, self._opened.get(handle))
        with self._lock:
            self._opened.pop(handle, None)
            self._opened[handle] = opened
            if len(self._opened) > _MOST_REMEMBERED:
                self._opened.popitem(last=False)
        return opened

    async def create_repo_async(
        self,
        name: str,
        *,
        bucket: str,
        description: str = "",
        visibility: str = "organisation",
        config: RepositoryConfig | None = None,
        spec_version: SpecVersion | int | None = None,
    ) -> Repository:
        """Create a repository in a bucket of its organisation, and open it for writing.

        A repository that was registered but never created is created now.

        Args:
            name: `org/name`.
            bucket: the name under which the organisation registered the bucket.
            description: what it is for.
            visibility: `organisation`, or `everyone` for all who are logged in.
            config: is stored with it.
            spec_version: of the format; the newest if not given.
        """
        organisation, _, short = checked_name(name).partition("/")
        seen_by = chosen(Visibility, visibility)
        new = NewRepository(short, bucket, description=description, visibility=seen_by)
        path = f"/orgs/{organisation}/repos"
        try:
            await self._transport.create(model.Repository, path, new)
        except AlreadyExistsError:
            if (await self._open(name, "write")).exists:
                raise
        opened = await self._open(name, "write")
        await Repository.create_async(opened.storage, config, None, spec_version)
        try:
            # The service reads the new configuration, and grants what it refers to.
            return await self.get_repo_async(name, access="write")
        except AccessDeniedError as error:
            error.add_note(f"{name} was created: it opens as soon as nothing is missing")
            raise

    create_repo = blocking(create_repo_async)

    async def import_repo_async(
        self,
        name: str,
        *,
        bucket: str,
        prefix: str,
        description: str = "",
        visibility: str = "organisation",
    ) -> model.Repository:
        """Register a repository that exists in a bucket already.

        Args:
            name: `org/name`.
            bucket: the name under which the organisation registered the bucket.
            prefix: where the repository is, below the prefix of the bucket.
            description: what it is for.
            visibility: `organisation`, or `everyone` for all who are logged in.
        """
        organisation, _, short = checked_name(name).partition("/")
        folder = f"{prefix.strip('/')}/"
        seen_by = chosen(Visibility, visibility)
        new = NewRepository(short, bucket, folder, description, seen_by, imports=True)
        path = f"/orgs/{organisation}/repos"
        return await self._transport.create(model.Repository, path, new)

    import_repo = blocking(import_repo_async)

    async def list_repos_async(
        self, organisation: str | None = None, *, search: str | None = None
    ) -> list[model.Repository]:
        """List the repositories that the caller may read, of one organisation or of all.

        With `search`, list those whose name or description has all of these words.
        """
        return await self._list(model.Repository, "/repos", org=organisation, search=search)

    list_repos = blocking(list_repos_async)

    async def show_repo_async(self, name: str) -> model.Repository:
        """Return what the service knows of a repository."""
        path = f"/repos/{checked_name(name)}"
        return await self._transport.call(model.Repository, "GET", path)

    show_repo = blocking(show_repo_async)

    async def change_repo_async(
        self,
        name: str,
        *,
        description: str | None = None,
        visibility: str | None = None,
        status: str | None = None,
        if_version: int | None = None,
    ) -> model.Repository:
        """Change the description, the visibility or the status of a repository.

        With `if_version`, raise `ConflictError` if somebody else changed it since that version.
        """
        change = RepositoryChange(
            description,
            None if visibility is None else chosen(Visibility, visibility),
            None if status is None else chosen(RepositoryStatus, status),
        )
        path = f"/repos/{checked_name(name)}"
        return await self._transport.call(
            model.Repository, "PATCH", path, change, if_version=if_version
        )

    change_repo = blocking(change_repo_async)

    async def delete_repo_async(self, name: str) -> None:
        """Remove a repository from the service; its data stays in the bucket."""
        path = f"/repos/{checked_name(name)}"
        await self._transport.call(type(None), "DELETE", path)

    delete_repo = blocking(delete_repo_async)

    # -- data ------------------------------------------------------------------------------

    async def read_data_async(
        self,
        name: str,
        path: str = "/",
        select: Mapping[str, object] | None = None,
        *,
        variables: Sequence[str] = (),
        version: str | None = None,
        decode: bool = True,
    ) -> "pa.Table":
        """Return values of a repository as a table with a row for each point.

        The service reads them: this is for a position or a small area. `get_repo` reads any
        amount, from the storage itself.

        Args:
            name: `org/name`.
            path: an array, or a group.
            select: what to read, by the parameters of the data routes: `{"lat": 52.1, "lon":
                "-10:0", "i.time": "0:24"}`; everything if not given.
            variables: arrays of the group; all that share its dimensions if not given.
            version: a branch, a tag, a snapshot id or a moment; `main` if not given.
            decode: whether values are decoded by the CF conventions.
        """
        import pyarrow as pa

        params = [(key, str(value)) for key, value in (select or {}).items()]
        if variables:
            params.append(("variables", ",".join(variables)))
        if version is not None:
            params.append(("version", version))
        if not decode:
            params.append(("decode", "false"))
        route = f"/repos/{checked_name(name)}/data/{quote(path.strip('/'))}"
        content = await self._transport.fetch(route, _ARROW, params)
        try:
            return pa.ipc.open_stream(content).read_all()
        except pa.ArrowInvalid:
            self._transport.fail_to_understand()

    read_data = blocking(read_data_async)


def _client(url: str, token_command: Iterable[str] | None) -> Client:
    return Client(url, token_command=None if token_command is None else tuple(token_command))


async def locate_async(name: str, access: str = "read") -> Opened:
    """Return what is needed to open a repository, by one request to its service.

    The name is a URL like `icefloe://host/org/name`, or `org/name` at the service of the last
    login.
    """
    service = None
    if is_service_url(name):
        service, name = parse_service_url(name)
    return await Client(service)._open(name, access)  # noqa: SLF001 - the same module


locate = blocking(locate_async)


def _show_code(link: str, code: str) -> None:
    """Show where to approve a login, in a notebook as a link."""
    text = f"Open {link} and check that it shows the code {code}"
    if "IPython" in sys.modules and _is_notebook():
        from IPython.display import HTML, display

        shown = escaped_html(link)
        display(
            HTML(
                f'<p>Open <a href="{shown}" target="_blank" rel="noopener">{shown}</a> and check'
                f" that it shows the code <strong>{escaped_html(code)}</strong></p>"
            )
        )
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _is_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")
