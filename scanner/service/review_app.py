"""The review app: a list of flags, a page for each, and forms that record decisions; it works without scripts.

A page's form carries the id of the decision that it will make, and the digest of the text that it shows. So a form that
is sent twice, because an answer was lost or the app was killed, makes one decision. Nobody decides on a text that they
did not see. Each link of the page carries the id as well: whoever follows one has left the flag, and its form decides
nothing any more.
"""

import functools
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from scanner.errors import BrickscanError, Refused
from scanner.evidence.accounts import NO_DECISION, about_account
from scanner.evidence.advice import RULES
from scanner.evidence.page import about, environment, visible
from scanner.printable import printable, safe
from scanner.results.decision_log import LONGEST_NOTE, Made, new_id, recorded
from scanner.results.flags import IN_NEED
from scanner.service.desk import LINES_A_PAGE, STATES, Changed, Desk, FlagRequest, FlagView, Place
from scanner.service.serving import body_of
from schemas.words import ReviewDecision

MOST_BYTES = 64 * 1024
"""Most bytes of a form: the longest note takes 48 kB at most."""

MEANS = {
    ReviewDecision.CONFIRMED: "the mark is there, and whoever posted it answers for it",
    ReviewDecision.QUOTED: "the mark is there, in words of somebody else",
    ReviewDecision.DISMISSED: "the mark is not there: the flag is false",
    ReviewDecision.ALLOWED: "the mark is there, and nothing is to be done: a test, or a use that you allow",
    ReviewDecision.UNCLEAR: "view at, without a result: it waits in the list “unclear”",
}

_SHOWN = 60

_MOST_NAMED = 4
"""Most reviewers who are named beside the form; the list above the form has all."""


def app_of(desk: Desk) -> Starlette:
    """The app for one reviewer's desk, as ASGI; scanner.service.review_access has to stand before it."""
    routes = (
        Route("/", functools.partial(_list, desk), methods=["GET"]),
        Route("/flag", functools.partial(_flag, desk), methods=["GET"]),
        Route("/accounts", functools.partial(_accounts, desk), methods=["GET"]),
        Route("/account", functools.partial(_account, desk), methods=["GET"]),
        Route("/decide", functools.partial(_decide, desk), methods=["POST"]),
        Route("/style.css", _style, methods=["GET"]),
        Route("/review.js", _script, methods=["GET"]),
    )
    return Starlette(routes=routes, exception_handlers={BrickscanError: _wrong, HTTPException: _wrong})


async def _list(desk: Desk, request: Request) -> Response:
    _leave(desk, request)
    flag_request, first = _flag_request(request.query_params), _number(request.query_params.get("first", "0"))
    listed = await run_in_threadpool(desk.list, flag_request, first)
    more = first + len(listed.entries) < listed.counts.on_list
    return _page(
        "review_list.html.j2",
        title="Flags to review",
        by=printable(desk.by),
        flag_request=flag_request,
        states=list(STATES),
        listed=listed,
        in_need=IN_NEED,
        earlier=flag_request.address("/", first=max(0, first - LINES_A_PAGE)) if first else None,
        later=flag_request.address("/", first=first + LINES_A_PAGE) if more else None,
        **await _just_recorded(desk, flag_request, request),
    )


async def _flag(desk: Desk, request: Request) -> Response:
    _leave(desk, request)
    flag_request, place, form_id = _flag_request(request.query_params), _place(request.query_params), new_id()
    view = await run_in_threadpool(desk.look, flag_request, place)
    return _page(
        "review_flag.html.j2",
        **await run_in_threadpool(about, view.explained),
        by=printable(desk.by),
        flag_request=flag_request,
        flag=flag_request.address("", **place._asdict())[1:],
        view=view,
        text_sha256=view.explained.row["text_sha256"].hex(),
        decision_id=form_id,
        means=MEANS,
        rules=RULES[:-1],
        MOST_NAMED=_MOST_NAMED,
        longest=LONGEST_NOTE,
        copied_from=_copied_from(view, form_id),
        back=flag_request.address("/", left=form_id),
        before=view.before and flag_request.address("/flag", **view.before._asdict(), left=form_id),
        after=view.after and flag_request.address("/flag", **view.after._asdict(), left=form_id),
        **await _just_recorded(desk, flag_request, request, form_id),
    )


async def _accounts(desk: Desk, request: Request) -> Response:
    first = _number(request.query_params.get("first", "0"))
    lines, total = await run_in_threadpool(desk.accounts, first)
    return _page(
        "review_accounts.html.j2",
        title="Marked accounts",
        accounts=lines,
        first=first,
        total=total,
        no_decision=NO_DECISION,
        earlier=f"/accounts?first={max(0, first - LINES_A_PAGE)}" if first else None,
        later=f"/accounts?first={first + LINES_A_PAGE}" if first + len(lines) < total else None,
    )


async def _account(desk: Desk, request: Request) -> Response:
    account_id, stated = request.query_params.get("id", ""), request.query_params.get("night", "")
    try:
        night = date.fromisoformat(stated)
    except ValueError:
        raise Refused(f"night {stated[:40]!r} is no date; go back to the list") from None
    found = await run_in_threadpool(desk.account, account_id, night)
    flags = FlagRequest("all", account=account_id).address("/")
    about_it = await run_in_threadpool(about_account, found)
    return _page("account.html.j2", **about_it, back="/accounts", back_to="Marked accounts", flags=flags)


def _copied_from(view: FlagView, form_id: str) -> str | None:
    """Address of the page of the earlier post that holds most of what a text may have copied."""
    copied = view.explained.copied
    if copied is None or copied.path is None:
        return None
    return FlagRequest("all").address("/flag", path=copied.path, row=copied.row, left=form_id)


def _leave(desk: Desk, request: Request) -> None:
    """Note which flag's page was left for this one: at once, before anything that takes time."""
    left = request.query_params.get("left", "")
    if left:
        desk.leave(left[:32])


async def _decide(desk: Desk, request: Request) -> Response:
    form = await _form(request)
    on = _query(form.get("flag", ""))
    flag_request, place = _flag_request(on), _place(on)
    note = form.get("note", "").replace("\r\n", "\n").strip()
    made = Made(form.get("decision_id", ""), desk.by, "app", form.get("decision", ""), note)
    if made.decision == ReviewDecision.CONFIRMED and form.get("sure") != "yes":
        advice = await run_in_threadpool(desk.advice, place, form.get("text_sha256", ""))
        if advice.decision != ReviewDecision.CONFIRMED:
            here = flag_request.address("/flag", **place._asdict(), left=made.decision_id)
            title = "Confirm against the advice?"
            return _page("review_sure.html.j2", title=title, form=form, advice=advice, here=here)
    row = await run_in_threadpool(desk.decide, place, form.get("text_sha256", ""), made)
    after = form.get("next", "")
    address = after if after.startswith("/flag?") else flag_request.address("/")
    return RedirectResponse(f"{address}&recorded={row['decision_id']}", 303)


async def _just_recorded(desk: Desk, flag_request: FlagRequest, request: Request, form_id: str = "") -> dict[str, Any]:
    """The decision that the form before this page recorded, in words."""
    row = await run_in_threadpool(recorded, desk.results, request.query_params.get("recorded", ""))
    if row is None:
        return {"recorded": None}
    name = printable(row["doc_id"] or f"{row['path']}:{row['row']}", _SHOWN)
    again = flag_request.address("/flag", path=row["path"], row=row["row"], left=form_id)
    return {"recorded": {"name": name, "decision": row["decision"], "again": again}}


async def _style(_request: Request) -> Response:
    return Response(_templates().get_template("review.css.j2").render(), media_type="text/css")


async def _script(_request: Request) -> Response:
    return Response((Path(__file__).parent / "review.js").read_bytes(), media_type="text/javascript")


def _wrong(request: Request, error: Exception) -> Response:
    """A page that says what was wrong; a form that came too late can be filled in again."""
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    else:
        status, message = (
            (409 if isinstance(error, Changed) else 404 if isinstance(error, Refused) else 503),
            str(error),
        )
    return _page("review_wrong.html.j2", status, title="This was not done", said=safe(message))


def _flag_request(given: Mapping[str, str]) -> FlagRequest:
    return FlagRequest(given.get("state", "open"), *(given.get(name, "") for name in ("user", "account", "key")))


def _place(given: Mapping[str, str]) -> Place:
    return Place(given.get("path", ""), _number(given.get("row", "")))


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise Refused(f"{digits[:40]!r} is no number of a row; go back to the list")
    return int(digits)


async def _form(request: Request) -> dict[str, str]:
    """Fields of a form. Raises HTTPException: it is too long or too slow, or no form of this app."""
    return _query((await body_of(request, MOST_BYTES)).decode("latin-1"))


def _query(query: str) -> dict[str, str]:
    """Fields of an address or a form, the last of each name. Raises HTTPException: it is none of this app."""
    try:
        fields = parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise HTTPException(400, "This is no form of this app.") from None
    return {name: values[-1] for name, values in fields.items()}


def _page(template: str, status: int = 200, **values: object) -> Response:
    return HTMLResponse(_templates().get_template(template).render(served=True, **values), status)


@functools.cache
def _templates() -> jinja2.Environment:
    """Templates of scanner.evidence and of this package."""
    evidence = jinja2.PackageLoader("scanner.evidence", ".")
    found = environment().overlay(loader=jinja2.ChoiceLoader([jinja2.PackageLoader("scanner.service", "."), evidence]))
    found.filters |= {"printable": printable, "shortly": lambda name: printable(name, _SHOWN), "visible": visible}
    return found
