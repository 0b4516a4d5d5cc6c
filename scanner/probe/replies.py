"""Read a server's answer into texts, from whole JSON or from a stream. Any other answer becomes a sentence.

Nothing in an answer is trusted. It may be HTML, be empty, come from another model, break off in the middle, or quote
the token.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scanner.printable import cut
from scanner.probe.classes import REASONING_ANSWER, Request
from scanner.probe.exchange import HttpAnswer, NoAnswer
from scanner.probe.readings import MOST_CHARACTERS, MOST_TOKENS

_MOST_QUOTED = 200
_MOST_SEARCHED = 2**16
_MOST_COUNTED = 10**9
_AGAIN = (408, 409, 425, 429)
"""Statuses below 500 after which another attempt may help."""
_LASTING = (400, 413, 414, 415, 422)
"""Statuses that blame the request. All others, such as 401, blame the server or the client."""


@dataclass(frozen=True)
class Answer:
    """A text from a server, or the reason why there is none. The fields are columns of the table of answers.

    Args:
        class_name: class of request.
        text: text as received, the first MOST_CHARACTERS of it. None: `error` says what came instead.
        ids: the server's own ids of its tokens.
        prompt_ids: ids of the tokens that the model read before, if the server gives them.
        finish: the server's reason to stop.
        error: a sentence, if there is no text.
        note: a sentence that must be reported with the text.
    """

    class_name: str
    text: str | None = None
    ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    finish: str | None = None
    error: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Reply:
    """All answers to one request, and the numbers of tokens that the server counted. None where it gives no number."""

    answers: tuple[Answer, ...]
    tokens_in: int | None = None
    tokens_out: int | None = None


def read_reply(request: Request, answer: HttpAnswer, secrets: Sequence[str]) -> Reply:
    """Read an answer.

    Args:
        request: request that it answers.
        answer: answer as it came.
        secrets: tokens that were sent. If the server repeats one, it is removed from everything that is kept.

    Raises:
        NoAnswer: it is no valid answer, and this concerns the whole request. Its text is a sentence.
    """
    text = _without_secrets(_decoded(answer.body), secrets)
    if answer.status != 200:
        again = answer.status >= 500 or answer.status in _AGAIN
        sentence = f"HTTP {answer.status}: {_message(text, secrets)}"
        lasting = answer.status in _LASTING
        raise NoAnswer(sentence, again=again, charged=False, lasting=lasting, retry_after=answer.retry_after)
    if not text.strip():
        raise NoAnswer("the answer is empty", again=True, charged=True)
    whole = _joined(text, request, secrets) if request.body.get("stream") else _object(text, secrets)
    if "error" in whole and "choices" not in whole:
        raise NoAnswer(f"the server says: {_message(json.dumps(whole), secrets)}", again=False, charged=True)
    choices = whole.get("choices")
    if not isinstance(choices, list) or not choices:
        raise NoAnswer(f"the server sent JSON without `choices`: {_quoted(text, secrets)}", again=False, charged=True)
    note = _other_model(request, whole, secrets)
    answers = [
        _bounded(_clean(found, secrets))
        for choice in choices[: request.choices]
        for found in _answers(request, whole, choice, note, secrets)
    ]
    missing = request.choices - len(choices)
    if missing > 0:
        lost = Answer(request.of_class.name, error=f"the server returned {len(choices)} of {request.choices} answers")
        answers += [lost] * missing
    usage = whole.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(tuple(answers), _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))


_NO_TEXT = "[bytes that are not UTF-8]"


def _decoded(body: bytes) -> str:
    """Return a body as text, without the character that a break cut in two.

    Bytes that are not UTF-8 are not shown at all: compressed or in another encoding, they may hide a token.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return _NO_TEXT
        text = body[: error.start].decode("utf-8-sig")
    return _NO_TEXT if "\0" in text else text


def failed(request: Request, sentence: str) -> Reply:
    """Return the reply to a request that got no answer."""
    names = [request.of_class.name, *([REASONING_ANSWER] if request.of_class.reasoning else [])]
    return Reply(tuple(Answer(name, error=sentence) for _ in range(request.choices) for name in names))


_TOKEN = "[token]"  # noqa: S105 - what stands in place of a token

_LEAST_SECRET = 8
"""Length of the shortest token that is removed. Servers without tokens are sent `EMPTY` or `none`, which may stay."""


def _without_secrets(text: str, secrets: Sequence[str]) -> str:
    """Replace tokens that a text repeats, in plain form or in the form of JSON."""
    for secret in secrets:
        if len(secret) >= _LEAST_SECRET:
            for form in {secret, json.dumps(secret)[1:-1]}:
                text = text.replace(form, _TOKEN)
    return text


_ESCAPED = re.compile(
    r"\\(?:u00|x)([0-9a-f]{2})|%([0-9a-f]{2})|&#x0{0,6}([0-9a-f]{2});?|&#0{0,6}([0-9]{2,3});?"
    r"|&(amp|lt|gt|quot|apos);?|\\([\"'/\\])",
    re.IGNORECASE,
)
"""An ASCII character as JSON, programs, URLs or HTML escape it."""

_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_MOST_LAYERS = 4
"""Escapes of escapes that are undone, such as those of JSON in a text of JSON in HTML."""


def _unescaped(text: str) -> str:
    for _ in range(_MOST_LAYERS):
        plain = _ESCAPED.sub(_character, text)
        if plain == text:
            break
        text = plain
    return text


def _character(match: re.Match[str]) -> str:
    *in_hexadecimal, decimal, name, plain = match.groups()
    digits = next(filter(None, in_hexadecimal), None)
    if digits or decimal:
        return chr(int(digits, 16) if digits else int(decimal))
    return _NAMED[name.lower()] if name else str(plain)


def _repeats(text: str, secrets: Sequence[str]) -> bool:
    """Return whether a text repeats a token, however its characters are escaped."""
    long = [_unescaped(secret) for secret in secrets if len(secret) >= _LEAST_SECRET]
    plain = _unescaped(text) if long else ""
    return any(secret in plain for secret in long)


def _clean(answer: Answer, secrets: Sequence[str]) -> Answer:
    """Remove tokens from the text of an answer. The ids of such a text go too, because they spell the token."""
    if answer.text is None:
        return answer
    text = _without_secrets(answer.text, secrets)
    text = _TOKEN if _repeats(text, secrets) else text
    return answer if text == answer.text and _TOKEN not in text else replace(answer, text=text, ids=None)


def _bounded(answer: Answer) -> Answer:
    """Cut off what is not tested of a long answer, because hundreds of them would fill the memory."""
    if answer.text is None:
        return answer
    ids, prompt_ids = answer.ids and answer.ids[:MOST_TOKENS], answer.prompt_ids and answer.prompt_ids[-MOST_TOKENS:]
    cut_off = f"only its first {MOST_CHARACTERS:,} characters were kept" if len(answer.text) > MOST_CHARACTERS else None
    note = "; ".join(filter(None, [answer.note, cut_off])) or None
    return replace(answer, text=answer.text[:MOST_CHARACTERS], ids=ids, prompt_ids=prompt_ids, note=note)


def _loaded(text: str, secrets: Sequence[str]) -> Any:  # noqa: ANN401
    """Read JSON and remove tokens from it, which JSON can write in many ways. Raises ValueError or RecursionError."""
    read = json.loads(text)
    return json.loads(_without_secrets(json.dumps(read, ensure_ascii=False), secrets)) if secrets else read


def _object(text: str, secrets: Sequence[str]) -> dict[str, Any]:
    try:
        read = _loaded(text, secrets)
    except (ValueError, RecursionError):
        kind = "HTML" if re.match(r"\s*<(!doctype|html|head|body)", text, re.IGNORECASE) else "something else"
        raise NoAnswer(
            f"the server sent {kind} instead of JSON: {_quoted(text, secrets)}", again=False, charged=True
        ) from None
    if not isinstance(read, dict):
        raise NoAnswer(
            f"the server sent JSON that is not an object: {_quoted(text, secrets)}", again=False, charged=True
        )
    return read


def _joined(text: str, request: Request, secrets: Sequence[str]) -> dict[str, Any]:
    """Join the pieces of a stream into the answer that would have come without streaming."""
    if not re.search(r"^data:", text, re.MULTILINE):
        return _object(text, secrets)
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    ended = False
    for data in _events(text):
        if data == "[DONE]":
            ended = True
            break
        piece = _object(data, secrets)
        if "error" in piece:
            raise NoAnswer(
                f"the stream ended with an error: {_message(json.dumps(piece), secrets)}", again=False, charged=True
            )
        whole |= {name: value for name, value in piece.items() if name != "choices" and value is not None}
        pieces = piece.get("choices")
        for choice in pieces if isinstance(pieces, list) else ():
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if isinstance(index, int) and 0 <= index < request.choices:
                _add_piece(choices.setdefault(index, {}), choice)
    if not ended and not (choices and all(choice.get("finish_reason") for choice in choices.values())):
        raise NoAnswer(f"the stream was cut off after {len(text):,} characters", again=True, charged=True)
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def _events(text: str) -> Iterator[str]:
    """Yield the data of each event of a stream (server-sent events, WHATWG HTML §9.2)."""
    lines = list[str]()
    for line in [*re.split(r"\r\n|\r|\n", text), ""]:
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


_GROWING = ("delta", "message", "token_ids", "text")
"""Fields of a choice that a stream gives in pieces. A piece of the wrong type is ignored."""


def _add_piece(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a piece to a choice. Texts (kept as lists of parts) and ids grow. Any other field is replaced."""
    for name, value in piece.items():
        if name in ("delta", "message") and isinstance(value, dict):
            message = choice.setdefault("message", {})
            calls = value.get("tool_calls")
            if isinstance(calls, list):
                _add_calls(message.setdefault("tool_calls", []), calls)
            _add_texts(message, value)
        elif name == "token_ids" and isinstance(value, list):
            choice.setdefault("token_ids", []).extend(value)
        elif name == "text" and isinstance(value, str):
            choice.setdefault("text", []).append({"text": value})
        elif name not in _GROWING and value is not None:
            choice[name] = value


def _add_texts(message: dict[str, Any], piece: dict[str, Any]) -> None:
    for name in ("content", "reasoning", "reasoning_content"):
        if isinstance(piece.get(name), str):
            message.setdefault(name, []).append({"text": piece[name]})


def _add_calls(calls: list[dict[str, Any]], pieces: list[Any]) -> None:
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index", 0)
        function = piece.get("function")
        if isinstance(function, dict) and isinstance(index, int) and 0 <= index <= len(calls):
            if index == len(calls):
                calls.append({"function": {"arguments": []}})
            calls[index]["function"]["arguments"].append({"text": function.get("arguments")})


def _answers(
    request: Request, whole: Mapping[str, Any], choice: object, note: str | None, secrets: Sequence[str]
) -> Iterator[Answer]:
    """Yield the texts of one choice: its answer, or first its reasoning if the class asks for that."""
    name = request.of_class.name
    if not isinstance(choice, dict):
        yield Answer(name, error="the answer is not a JSON object")
        return
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    finish = choice.get("finish_reason")
    of_choice = Answer(
        name,
        prompt_ids=_ids(choice.get("prompt_token_ids")) or _ids(whole.get("prompt_token_ids")),
        finish=_shortened(finish, secrets) if isinstance(finish, str) else None,
        note=note,
    )
    text = _text(choice.get("text") if "text" in choice else message.get("content"))
    if not text:
        text = _arguments(message.get("tool_calls"))
    reasoning = _text(message.get("reasoning")) or _text(message.get("reasoning_content"))
    ids = _ids(choice.get("token_ids"))
    if not request.of_class.reasoning:
        # if there is reasoning, the ids cover it and the answer, so they are not those of the text
        yield _with_text(of_choice, text, None if reasoning else ids)
        return
    missing = "the answer has no separate reasoning; set answers = 0 for this class if the model does not give any"
    yield _with_text(of_choice, reasoning, None) if reasoning else replace(of_choice, error=missing)
    # the model read prompt and reasoning before its answer, and the tokens of the reasoning are not known
    yield _with_text(replace(of_choice, class_name=REASONING_ANSWER, prompt_ids=None), text, None)


def _with_text(answer: Answer, text: str, ids: tuple[int, ...] | None) -> Answer:
    if not text:
        return replace(answer, error="the answer is empty")
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return replace(answer, text=text, ids=ids)
    notes = [*filter(None, [answer.note]), "incomplete characters in it were replaced"]
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return replace(answer, text=clean, ids=ids, note="; ".join(notes))


def _text(content: object) -> str:
    """Return a text, which may come as a list of parts. Empty if there is none."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _arguments(calls: object) -> str:
    """Return the text that a model wrote as arguments for the tools that it calls."""
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    written = [_text(function.get("arguments")) for function in functions if isinstance(function, dict)]
    return "\n".join(filter(None, written))


def _ids(value: object) -> tuple[int, ...] | None:
    """Return ids of tokens. None: there are none, or they are not valid."""
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**32 for one in value):
        return tuple(value)
    return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_COUNTED else None


def _other_model(request: Request, whole: Mapping[str, Any], secrets: Sequence[str]) -> str | None:
    asked, answered = request.body["model"], whole.get("model")
    if not isinstance(answered, str) or answered == asked:
        return None
    return f"answered by model {_shortened(answered, secrets)!r}, but {asked!r} was requested"


def in_an_error(sentence: str) -> str:
    """Return a sentence for the middle of an error. The first semicolon begins the hint, and no server writes it."""
    return sentence.replace("; ", ", ")


def _message(text: str, secrets: Sequence[str]) -> str:
    """Return the text of an error: its `message` if it has one."""
    try:
        read = _loaded(text, secrets)
    except (ValueError, RecursionError):
        return _quoted(text, secrets) or "nothing else"
    if isinstance(read, dict):
        inner = read.get("error", read)
        said = inner.get("message", inner) if isinstance(inner, dict) else inner
        return _quoted(said if isinstance(said, str) else json.dumps(said), secrets)
    return _quoted(text, secrets)


def _quoted(text: str, secrets: Sequence[str]) -> str:
    return _shortened(" ".join(text.split()), secrets)


def _shortened(text: str, secrets: Sequence[str]) -> str:
    """Shorten a server's text that is kept beside an answer. It keeps whole characters only, and no token."""
    ends = text if len(text) <= _MOST_SEARCHED else cut(text, _MOST_SEARCHED)  # only those are shown
    if _repeats(ends, secrets):
        return "[a text that repeats the token]"
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= _MOST_QUOTED else cut(clean, _MOST_QUOTED)
