"""Serve the review app: a list of flags, a page for each, and forms that record decisions. It works without scripts.

A page's form contains the id of the decision that it will make, and the digest of the text that it shows. If a form is
sent twice, because an answer was lost or the app was killed, it still makes one decision. A decision on a text that the
reviewer did not see is refused. Each link of the page contains the id as well. A reviewer who follows a link has left
the flag, and its form then makes no decision any more.

The app listens on 127.0.0.1. Other users of the machine, and pages that a reviewer has open, can send requests to it
too. Each request is therefore checked:

- its Host: another site's name that leads to 127.0.0.1 (DNS rebinding) is refused.
- its cookie, which the address with the token has set. It is HttpOnly, and SameSite=Strict keeps it out of requests
  from other sites.
- if it changes something, its Origin, which must be the app itself: pages on other ports count as "the same site".

Pages may load the app's own style and script. They run no inline scripts, and cannot be framed.
"""

import functools
import hmac
import secrets
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanner.errors import BrickscanError, Refused
from scanner.evidence.advice import OWNERSHIP, RULES
from scanner.evidence.explainer import Explainer
from scanner.evidence.page import about, environment
from scanner.evidence.posted_text import as_posted
from scanner.looks.marked_account import NO_DECISION
from scanner.looks.marked_accounts import account_look
from scanner.printable import printable, safe
from scanner.results.decision_log import NewDecision, new_id, recorded_decision
from scanner.results.flags import IN_NEED
from scanner.service.review_session import (
    LINES_A_PAGE,
    STATES,
    ChangedText,
    DocumentPlace,
    FlagRequest,
    FlagView,
    ReviewSession,
)
from scanner.service.serving import LOOPBACK, Server, body_of
from schemas.verdict import LONGEST_NAME, LONGEST_NOTE
from schemas.words import ReviewDecision

MOST_BYTES = 64 * 1024
"""Most bytes of a form. The longest note takes 48 kB."""

DECISION_MEANINGS = {
    ReviewDecision.CONFIRMED: "the mark is there, and the account that posted it answers for it",
    ReviewDecision.QUOTED: "the mark is there, in somebody else's words",
    ReviewDecision.DISMISSED: "the mark is not there: the flag is false",
    ReviewDecision.ALLOWED: "the mark is there, and nothing needs to be done: a test, or a use that you allow",
    ReviewDecision.UNCLEAR: "reviewed without a result: it stays in the list “unclear”",
}

_SHOWN = 60

_MOST_NAMED = 4
"""Most reviewers who are named next to the form. The list above the form has all."""


def app_of(session: ReviewSession) -> Starlette:
    """Return the app of a reviewer's session, as ASGI. It must be wrapped in `Access`."""
    routes = (
        Route("/", functools.partial(_list, session), methods=["GET"]),
        Route("/flag", functools.partial(_flag, session), methods=["GET"]),
        Route("/accounts", functools.partial(_accounts, session), methods=["GET"]),
        Route("/account", functools.partial(_account, session), methods=["GET"]),
        Route("/decide", functools.partial(_decide, session), methods=["POST"]),
        Route("/style.css", _style, methods=["GET"]),
        Route("/review.js", _script, methods=["GET"]),
    )
    return Starlette(routes=routes, exception_handlers={BrickscanError: _wrong, HTTPException: _wrong})


async def _list(session: ReviewSession, request: Request) -> Response:
    _leave(session, request)
    flag_request, first = _flag_request(request.query_params), _number(request.query_params.get("first", "0"))
    listed = await run_in_threadpool(session.list, flag_request, first)
    has_more = first + len(listed.entries) < listed.counts.on_list
    return _page(
        "review_list.html.j2",
        title="Flags to review",
        by=printable(session.by),
        flag_request=flag_request,
        states=list(STATES),
        listed=listed,
        in_need=IN_NEED,
        ownership=OWNERSHIP,
        earlier=flag_request.address("/", first=max(0, first - LINES_A_PAGE)) if first else None,
        later=flag_request.address("/", first=first + LINES_A_PAGE) if has_more else None,
        **await _just_recorded(session, flag_request, request),
    )


async def _flag(session: ReviewSession, request: Request) -> Response:
    _leave(session, request)
    flag_request, place, form_id = _flag_request(request.query_params), _place(request.query_params), new_id()
    view = await run_in_threadpool(session.view_flag, flag_request, place)
    return _page(
        "review_flag.html.j2",
        **await run_in_threadpool(about, view.explained),
        by=printable(session.by),
        flag_request=flag_request,
        flag=flag_request.address("", **place._asdict())[1:],
        view=view,
        text_sha256=view.explained.row["text_sha256"].hex(),
        decision_id=form_id,
        means=DECISION_MEANINGS,
        rules=RULES[:-1],
        MOST_NAMED=_MOST_NAMED,
        longest=LONGEST_NOTE,
        copied_from=_copied_from(view, form_id),
        back=flag_request.address("/", left=form_id),
        before=view.before and flag_request.address("/flag", **view.before._asdict(), left=form_id),
        after=view.after and flag_request.address("/flag", **view.after._asdict(), left=form_id),
        **await _just_recorded(session, flag_request, request, form_id),
    )


async def _accounts(session: ReviewSession, request: Request) -> Response:
    first = _number(request.query_params.get("first", "0"))
    lines, total, not_checked = await run_in_threadpool(session.accounts, first)
    return _page(
        "review_accounts.html.j2",
        title="Marked accounts",
        accounts=lines,
        first=first,
        total=total,
        no_decision=NO_DECISION,
        not_checked=not_checked,
        earlier=f"/accounts?first={max(0, first - LINES_A_PAGE)}" if first else None,
        later=f"/accounts?first={first + LINES_A_PAGE}" if first + len(lines) < total else None,
    )


async def _account(session: ReviewSession, request: Request) -> Response:
    account_id, night_text = request.query_params.get("id", ""), request.query_params.get("night", "")
    try:
        night = date.fromisoformat(night_text)
    except ValueError:
        raise Refused(f"night {night_text[:40]!r} is not a date; go back to the list") from None
    account = await run_in_threadpool(session.account, account_id, night)
    flags = FlagRequest("all", account=account_id).address("/")
    account_view = await run_in_threadpool(account_look().about_account, account)
    return _page("account.html.j2", **account_view, back="/accounts", back_to="Marked accounts", flags=flags)


def _copied_from(view: FlagView, form_id: str) -> str | None:
    """Return the address of the page of the earlier post that contains most of the text that may be copied."""
    copied = view.explained.copied
    if copied is None or copied.path is None:
        return None
    return FlagRequest("all").address("/flag", path=copied.path, row=copied.row, left=form_id)


def _leave(session: ReviewSession, request: Request) -> None:
    """Record which flag's page was left for this one. Call it first, before anything that takes time."""
    form_id = request.query_params.get("left", "")
    if form_id:
        session.leave(form_id[:32])


async def _decide(session: ReviewSession, request: Request) -> Response:
    form = await _form(request)
    flag_query = _query(form.get("flag", ""))
    flag_request, place = _flag_request(flag_query), _place(flag_query)
    note = form.get("note", "").replace("\r\n", "\n").strip()
    decision = NewDecision(form.get("decision_id", ""), session.by, "app", form.get("decision", ""), note)
    if decision.decision == ReviewDecision.CONFIRMED and form.get("sure") != "yes":
        advice = await run_in_threadpool(session.advice, place, form.get("text_sha256", ""))
        if advice.decision != ReviewDecision.CONFIRMED:
            flag_address = flag_request.address("/flag", **place._asdict(), left=decision.decision_id)
            title = "Confirm against the advice?"
            return _page("review_sure.html.j2", title=title, form=form, advice=advice, here=flag_address)
    row = await run_in_threadpool(session.decide, place, form.get("text_sha256", ""), decision)
    next_address = form.get("next", "")
    address = next_address if next_address.startswith("/flag?") else flag_request.address("/")
    return RedirectResponse(f"{address}&recorded={row['decision_id']}", 303)


async def _just_recorded(
    session: ReviewSession, flag_request: FlagRequest, request: Request, form_id: str = ""
) -> dict[str, Any]:
    """Return, in words, the decision that the previous page's form has recorded."""
    row = await run_in_threadpool(recorded_decision, session.results, request.query_params.get("recorded", ""))
    if row is None:
        return {"recorded": None}
    name = printable(row["doc_id"] or f"{row['path']}:{row['row']}", _SHOWN)
    flag_address = flag_request.address("/flag", path=row["path"], row=row["row"], left=form_id)
    return {"recorded": {"name": name, "decision": row["decision"], "again": flag_address}}


async def _style(_request: Request) -> Response:
    return Response(_templates().get_template("review.css.j2").render(), media_type="text/css")


async def _script(_request: Request) -> Response:
    return Response((Path(__file__).parent / "review.js").read_bytes(), media_type="text/javascript")


def _wrong(request: Request, error: Exception) -> Response:
    """Return a page that explains an error. A form that came too late can be filled in again."""
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    else:
        status, message = (
            (409 if isinstance(error, ChangedText) else 404 if isinstance(error, Refused) else 503),
            str(error),
        )
    return _page("review_wrong.html.j2", status, title="This was not done", said=safe(message))


def _flag_request(fields: Mapping[str, str]) -> FlagRequest:
    return FlagRequest(fields.get("state", "open"), *(fields.get(name, "") for name in ("user", "account", "key")))


def _place(fields: Mapping[str, str]) -> DocumentPlace:
    return DocumentPlace(fields.get("path", ""), _number(fields.get("row", "")))


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise Refused(f"{digits[:40]!r} is not a row number; go back to the list")
    return int(digits)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: it is too long or too slow, or is no form of this app.
    """
    return _query((await body_of(request, MOST_BYTES)).decode("latin-1"))


def _query(query: str) -> dict[str, str]:
    """Return the fields of an address or a form. Of fields with the same name, the last counts.

    Raises:
        HTTPException: it is no query of this app.
    """
    try:
        fields = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise HTTPException(400, "This form is not from this app.") from None
    return {name: values[-1] for name, values in fields.items()}


def _page(template: str, status: int = 200, **values: object) -> Response:
    return HTMLResponse(_templates().get_template(template).render(served=True, **values), status)


@functools.cache
def _templates() -> jinja2.Environment:
    """Return the templates of scanner.evidence and of this package."""
    evidence = jinja2.PackageLoader("scanner.evidence", ".")
    templates = environment().overlay(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("scanner.service", "."), evidence])
    )
    templates.filters |= {"printable": printable, "shortly": lambda name: printable(name, _SHOWN), "visible": as_posted}
    return templates


_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # not `no-referrer`: with it, browsers would send no Origin
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """Admits requests that may use the app, and adds headers to every answer.

    Args:
        app: answers the admitted requests.
        port: the port on which the app listens.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port
        self._token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"brickscan-review-{port}"  # with the port, because cookies ignore ports and two apps may run

    @property
    def address(self) -> str:
        """Return the address with the token. Any user who has it can see all flags and decide."""
        return f"http://127.0.0.1:{self._port}/?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on to the app (ASGI)."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (self._refuse(Request(scope)) or self._app)(scope, receive, with_headers)

    def _refuse(self, request: Request) -> Response | None:
        if request.headers.get("host") not in self._hosts:
            return PlainTextResponse("This app can only be opened at 127.0.0.1.", 421)
        token = request.query_params.get("token")
        if token is not None and request.scope["method"] == "GET":
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return PlainTextResponse(
                    "This address belongs to an app that has ended. Open the address that was printed last.", 403
                )
            response = RedirectResponse("/", 303)  # removes the token from the address bar
            response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
            return response
        if not hmac.compare_digest(self._cookie_of(request.headers).encode(), self._session.encode()):
            return PlainTextResponse("Open the address that `brickscan review` printed when it started.", 403)
        origins = {f"http://{host}" for host in self._hosts}
        if request.scope["method"] != "GET" and request.headers.get("origin") not in origins:
            return PlainTextResponse("This was sent by another page. Decide in the app itself.", 403)
        return None

    def _cookie_of(self, headers: Headers) -> str:
        """Return the value of the session's cookie.

        It does not use the standard library's parser, whose time grows with the square of the length.
        """
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == self._cookie), "")


class ReviewServer(Server):
    """The review app, on 127.0.0.1 only.

    Args:
        explainer: explainer of the results.
        by: the reviewer.
        port: 0: any free port.

    Raises:
        Refused: another program has the port, or the reviewer has no name or one too long.
    """

    def __init__(self, explainer: Explainer, by: str, port: int) -> None:
        if not by.strip() or len(by) > LONGEST_NAME:
            raise Refused(f"--by: a name of 1 to {LONGEST_NAME} characters is needed")
        self.by, app = by, app_of(ReviewSession(explainer, by))

        def guarded(bound: int) -> Access:
            self._access = Access(app, bound)
            return self._access

        super().__init__(LOOPBACK, port, guarded)

    @property
    def address(self) -> str:
        """Return the address with the token. Any user who has it can see all flags and decide."""
        return self._access.address
