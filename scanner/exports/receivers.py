"""The receivers that a configuration names, and how their reports are made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scanner.detection.scan_plan import read_config
from scanner.errors import Refused
from scanner.exports.bodies import coop_report, ozone_event
from scanner.exports.sending import Receiver, checked_url
from scanner.registry.secrets import read_token
from scanner.watermark.stacks.shared import Held
from schemas.config import ExportConfig
from schemas.verdict import Verdict

Body = Callable[[Verdict, str | None], dict[str, Any]]


def ozone_or_coop(config_file: Path, name: str) -> tuple[Body, Callable[[], Receiver]]:
    """The function that makes a report, and the one that opens its receiver, which alone reads the token.

    Raises:
        Refused: the configuration has no such receiver.
    """
    config = read_config(config_file).export or ExportConfig()
    base = config_file.absolute().parent
    if name == "coop" and (coop := config.coop) is not None:
        url = checked_url("export.coop.url", coop.url) + "/api/v1/report"

        def to_coop() -> Receiver:
            return Receiver("coop", url, Held({"X-API-KEY": read_token(coop.token, base)}), drops_repeats=False)

        return lambda verdict, text: coop_report(verdict, text, coop), to_coop
    if name == "ozone" and (ozone := config.ozone) is not None:
        where = checked_url("export.ozone.url", ozone.url) + "/xrpc/tools.ozone.moderation.emitEvent"

        def to_ozone() -> Receiver:
            headers = {"Authorization": f"Bearer {read_token(ozone.token, base)}"}
            if ozone.labeler is not None:
                headers["atproto-proxy"] = f"{ozone.labeler}#atproto_labeler"
            return Receiver("ozone", where, Held(headers), drops_repeats=True)

        return lambda verdict, _text: ozone_event(verdict, ozone), to_ozone
    raise Refused(f"{config_file}: has no section [export.{name}]; docs/guides/export.md shows one")
