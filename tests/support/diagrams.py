"""Draws the diagrams of docs/pictures as SVG, in light and dark: `night`, `decision` and `evidence`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

PALETTES = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#818b98",
        "box": "#f6f8fa",
        "store": "#ddf4ff",
        "act": "#fff1c9",
        "strong": "#f5c451",
        "blue": "#1971c2",
        "red": "#d9480f",
    },
    "dark": {
        "ink": "#f0f3f6",
        "soft": "#9ea7b3",
        "line": "#7a828e",
        "box": "#21262d",
        "store": "#10304f",
        "act": "#4a3a12",
        "strong": "#8a6410",
        "blue": "#74c0fc",
        "red": "#ffa94d",
    },
}
"""Colours of each scheme. Pictures have no ground of their own: the page's shows through."""

FONT, SMALL = 15, 13
"""Heights of letters, in units of a picture that is 760 wide; pages show it 700 pixels wide or more."""


class Canvas:
    """Shapes and words in the colours of one scheme.

    Args:
        palette: the scheme's colours.
        width: of the picture, in its own units.
        height: of the picture.
        caption: what the picture shows, for people who cannot see it.
    """

    def __init__(self, palette: dict[str, str], width: int, height: int, caption: str) -> None:
        self.palette, self.width, self.height, self.caption = palette, width, height, caption
        self.elements: list[Markup] = []

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: float = FONT,
        colour: str = "ink",
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write a line of text whose letters stand on y."""
        self.elements.append(
            Markup('<text x="{:g}" y="{:g}" font-size="{:g}" fill="{}" text-anchor="{}"{}>{}</text>').format(
                x, y, size, self.palette[colour], anchor, Markup(' font-weight="600"') if bold else "", text
            )
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str = "box", dashed: bool = False) -> None:
        """Draw a box with round corners."""
        self.elements.append(
            Markup('<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="8" fill="{}" stroke="{}"{}/>').format(
                x,
                y,
                width,
                height,
                self.palette[fill],
                self.palette["line"],
                Markup(' stroke-dasharray="5 4"') if dashed else "",
            )
        )

    def labelled(
        self, x: float, y: float, width: float, height: float, title: str, lines: Sequence[str] = (), fill: str = "box"
    ) -> None:
        """Draw a box with a title and smaller lines below it, in its middle."""
        self.box(x, y, width, height, fill)
        top = y + (height - FONT - len(lines) * (SMALL + 5)) / 2 + FONT - 2
        self.words(x + width / 2, top, title, bold=True)
        for i, line in enumerate(lines, 1):
            self.words(x + width / 2, top + i * (SMALL + 5), line, SMALL, "soft")

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line through points, with a head at the last one."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self.elements.append(
            Markup('<path d="{}" fill="none" stroke="{}" stroke-width="1.6" marker-end="url(#head)"/>').format(
                path, self.palette["line"]
            )
        )

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        colour: str,
        thickness: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Draw a straight line without a head."""
        self.elements.append(
            Markup('<path d="M{:g} {:g}L{:g} {:g}" stroke="{}" stroke-width="{:g}"{}/>').format(
                *start, *end, self.palette[colour], thickness, Markup(' stroke-dasharray="5 4"') if dashed else ""
            )
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        """Draw a point of a plot."""
        self.elements.append(Markup('<circle cx="{:g}" cy="{:g}" r="5" fill="{}"/>').format(x, y, self.palette[colour]))

    def svg(self) -> str:
        """Return the picture as a file."""
        head = Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
            "<title>{2}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{3}"/></marker></defs>\n'
        ).format(self.width, self.height, self.caption, self.palette["line"])
        return str(head + Markup("\n").join(self.elements) + Markup("\n</svg>\n"))


def night(palette: dict[str, str]) -> str:
    """Draw how the texts of a night become flags that people look at."""
    canvas = Canvas(
        palette, 760, 340,
        "A night: Parquet files are cut into shards, workers score them under , their rows go into Delta tables, and "
        "people read flags, a report and a review. What cannot be scored goes to quarantine.",
    )  # fmt: skip
    canvas.labelled(275, 6, 140, 70, "registry", ["secret keys, users", "and their messages"], "store")
    canvas.labelled(6, 130, 122, 90, "Parquet files", ["the texts", "of one night"], "store")
    canvas.labelled(158, 130, 96, 90, "shards", ["ranges of", "their rows"])
    for step in (12, 6):
        canvas.box(275 + step, 130 - step, 140, 90)
    canvas.labelled(275, 130, 140, 90, "workers", ["tokenise and score", "one per CPU, on Ray"])
    canvas.labelled(455, 110, 130, 130, "Delta tables", ["verdicts", "flags", "audits", "scans"], "store")
    for y, title, line in ((90, "flags", "list, queries"), (146, "review", "people decide"), (202, "report", "pages")):
        canvas.labelled(630, y, 120, 48, title, [line], "act")
        canvas.arrow((587, 175), (627, y + 24))
    canvas.labelled(275, 262, 140, 70, "quarantine", ["what can't be", "scored, and why"], "store")
    canvas.arrow((130, 175), (155, 175))
    canvas.arrow((256, 175), (272, 175))
    canvas.arrow((429, 175), (452, 175))
    canvas.arrow((345, 78), (345, 115))
    canvas.arrow((345, 222), (345, 259))
    canvas.words(440, 291, "Every document ends in exactly one place:", SMALL, "soft", "start")
    canvas.words(440, 309, "a row of verdicts or a row of quarantine.", SMALL, "soft", "start")
    return canvas.svg()


class Question(NamedTuple):
    """A step on the way from a flag to a decision.

    asks: lines of the question.
    advice: what to do where the answer is yes.
    decision: what to record then.
    """

    asks: tuple[str, ...]
    advice: str
    decision: str


QUESTIONS = (
    Question(
        ("Did the audit alarm, or did the", "second computation differ?"),
        "Use no flag. Tell the engineers.",
        "no decision",
    ),
    Question(("Is the message reserved?",), "The flag is false.", "dismissed"),
    Question(("Is the mark a test: a trial", "or a canary?"), "Nothing to do.", "allowed"),
    Question(("Is the signature unchecked?",), "Have it checked first.", "no decision"),
    Question(
        ("Is no user named, under a key", "that marks for single users?"), "Nothing to do. Never guess.", "unclear"
    ),
    Question(("Does the page warn of this key?",), "Not on this flag alone.", "unclear"),
    Question(
        ("Is only quoted text marked, or", "text of others' earlier posts?"),
        "Nothing: these are others' words.",
        "quoted",
    ),
    Question(
        ("Do your records give the", "account to somebody else?"), "Ask how the text got there.", "quoted or unclear"
    ),
    Question(("Do your records say nothing", "about the account?"), "Ask. Equal names prove nothing.", "unclear"),
    Question(("Is the text marked for", "several users?"), "See whose each part is.", "unclear"),
    Question(("Does your policy allow", "generated text there?"), "Nothing to do.", "allowed"),
)
"""The table of docs/guides/what-to-do-with-a-flag.md, in its order: the first yes decides."""


def decision(palette: dict[str, str]) -> str:
    """Draw the questions that lead from a flag to a decision."""
    step, height = 60, 46
    end = 20 + step * len(QUESTIONS)
    canvas = Canvas(
        palette, 760, end + height + 10,
        "From a flag to a decision: the first question whose answer is yes decides; where all answers are no, confirm.",
    )  # fmt: skip
    for i, question in enumerate(QUESTIONS):
        y = 10 + i * step
        canvas.box(10, y, 290, height)
        for j, line in enumerate(question.asks):
            canvas.words(155, y + height / 2 + 5 + (j - (len(question.asks) - 1) / 2) * 19, line)
        canvas.arrow((302, y + height / 2), (367, y + height / 2))
        canvas.words(332, y + height / 2 - 6, "yes", SMALL, "soft")
        canvas.box(370, y, 380, height, "store")
        canvas.words(384, y + height / 2 + 5, question.advice, anchor="start")
        canvas.words(738, y + height / 2 + 5, question.decision, SMALL, "soft", "end")
        canvas.arrow((155, y + height + 1), (155, y + step - 2))
        if i == 0:
            canvas.words(166, y + height + 11, "no", SMALL - 1, "soft", "start")
    canvas.box(10, end - 10, 740, height, "act")
    canvas.words(
        24,
        end + height / 2 - 5,
        "The account's own words carry the mark: act by your policy.",
        bold=True,
        anchor="start",
    )
    canvas.words(738, end + height / 2 - 5, "confirmed", SMALL, "ink", "end")
    return canvas.svg()


class ShownToken(NamedTuple):
    """A token of a marked text.

    text: its characters.
    favoured: whether the key favours it here; None where it does not count.
    """

    text: str
    favoured: bool | None


def evidence(palette: dict[str, str], tokens: Sequence[ShownToken], summary: Sequence[str]) -> str:
    """Draw a marked text whose favoured tokens are shaded.

    Args:
        palette: the scheme's colours.
        tokens: all tokens of the text, in order.
        summary: lines below the text.
    """
    columns, width, height = 84, 8.6, 27
    placed, column, line = list[tuple[int, int, ShownToken]](), 0, 0
    for token in tokens:
        for i, piece in enumerate(token.text.split("\n")):
            if i or column + len(piece) > columns:
                line, column = line + 1, 0
            shown = piece if column else piece.lstrip(" ")
            if shown:
                placed.append((line, column, ShownToken(shown, token.favoured)))
            column += len(shown)
    end = (line + 1) * height + 24
    canvas = Canvas(
        palette, 760, end + 24 * len(summary) + 14,
        "A marked text; tokens that the key favours are shaded. " + " ".join(summary),
    )  # fmt: skip
    for row, place, token in placed:
        x, y, blanks = 16 + place * width, 16 + row * height, len(token.text) - len(token.text.lstrip(" "))
        letters = len(token.text) - blanks
        if not letters:
            continue
        if token.favoured:
            canvas.elements.append(
                Markup('<rect x="{:g}" y="{:g}" width="{:g}" height="{}" rx="3" fill="{}"/>').format(
                    x + blanks * width - 0.5, y, letters * width, height - 6, palette["strong"]
                )
            )
        canvas.elements.append(
            Markup(
                '<text x="{:g}" y="{:g}" textLength="{:g}" lengthAdjust="spacingAndGlyphs" font-size="14" '
                'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" fill="{}">{}</text>'
            ).format(
                x + blanks * width, y + 15, letters * width - 1,
                palette["soft" if token.favoured is None else "ink"], token.text[blanks:],
            )
        )  # fmt: skip
    for i, words in enumerate(summary):
        canvas.words(16, end + 16 + 24 * i, words, anchor="start", bold=not i)
    return canvas.svg()


DIAGRAMS: dict[str, Callable[[dict[str, str]], str]] = {"night": night, "decision": decision}


def write_diagrams(folder: Path, diagrams: Mapping[str, Callable[[dict[str, str]], str]]) -> None:
    """Write each diagram in each scheme as NAME-SCHEME.svg."""
    folder.mkdir(exist_ok=True)
    for scheme, palette in PALETTES.items():
        for name, draw in diagrams.items():
            (folder / f"{name}-{scheme}.svg").write_text(draw(palette), encoding="utf-8")
