"""Who may use the review app.

The app listens on 127.0.0.1. Another user of the machine, or a page that a reviewer has open, can send requests to it
too, so each request is checked:

- for its Host: a name of a stranger that leads to 127.0.0.1 (DNS rebinding) is refused;
- for the cookie that the address with the token gave; it is HttpOnly, and SameSite=Strict keeps it from requests that
  other sites make;
- where it changes something, for its Origin, which must be the app itself: pages of other ports are "the same site".

Pages may load the app's own style and script, run nothing that stands in them, and stand in no frame.
"""

import hmac
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanner.errors import Refused
from scanner.evidence.explainer import Explainer
from scanner.results.decision_log import LONGEST_NAME
from scanner.service.desk import Desk
from scanner.service.review_app import app_of
from scanner.service.serving import OWN, Server

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # with `no-referrer`, browsers would send no Origin
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """Lets in requests that may use the app, and gives every answer its headers.

    Args:
        app: answers the requests that are let in.
        port: the port on which the app listens.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port
        self._token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"brickscan-review-{port}"  # cookies know no ports, and two apps may run

    @property
    def address(self) -> str:
        """Address with the token; whoever has it can see all flags and decide."""
        return f"http://127.0.0.1:{self._port}/?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the app answer it (ASGI)."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (self._refuse(Request(scope)) or self._app)(scope, receive, with_headers)

    def _refuse(self, request: Request) -> Response | None:
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse("This app is asked as 127.0.0.1 alone.", 421)
        token = request.query_params.get("token")
        if token is not None and request.scope["method"] == "GET":
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return PlainTextResponse(
                    "This address is of an app that ended. Open the one that was printed last.", 403
                )
            response = RedirectResponse("/", 303)  # so that the address bar keeps no token
            response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
            return response
        if not hmac.compare_digest(self._cookie_of(request.headers).encode(), self._session.encode()):
            return PlainTextResponse("Open the address that `brickscan review` printed when it began.", 403)
        origins = {f"http://{host}" for host in self._hosts}
        if request.scope["method"] != "GET" and request.headers.get("origin") not in origins:
            return PlainTextResponse("This was sent by another page. Decide in the app itself.", 403)
        return None

    def _cookie_of(self, headers: Headers) -> str:
        """Value of the session's cookie; the standard library's parser takes time by the square of the length."""
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._cookie), "")


class ReviewServer(Server):
    """The review app, on 127.0.0.1 alone.

    Args:
        explainer: of the results.
        by: the reviewer.
        port: 0 for any that is free.

    Raises:
        Refused: another program has the port, or the reviewer has no name or one too long.
    """

    def __init__(self, explainer: Explainer, by: str, port: int) -> None:
        if not by.strip() or len(by) > LONGEST_NAME:
            raise Refused(f"--by: a name of 1 to {LONGEST_NAME} characters is asked")
        self.by, app = by, app_of(Desk(explainer, by))

        def guarded(taken: int) -> Access:
            self._access = Access(app, taken)
            return self._access

        super().__init__(OWN, port, guarded)

    @property
    def address(self) -> str:
        """Address with the token; whoever has it can see all flags and decide."""
        return self._access.address
