"""Define the look at accounts for a scan."""

from collections.abc import Sequence

from scanner.detection.rows import TextIds
from scanner.looks.accounts.post_rows import PostKeeper, keep_posts
from scanner.looks.look import LookRun
from scanner.scan_plan import Plan


class Accounts:
    """Keeps posts while documents are scanned, and tests all posts of each account together when all are committed."""

    name = "accounts"
    section = "accounts"

    def check(self, plan: Plan) -> None:
        """Return None: posts are scored from their kept n-grams, which costs little."""
        del plan

    def tables(self, plan: Plan) -> Sequence[str]:
        """Return the name of the table of posts, if accounts are tested."""
        return [PostKeeper.table] if plan.config.accounts else []

    def keeper(self, plan: Plan, scan_id: str, text_ids: TextIds) -> PostKeeper | None:
        """Create the keeper of a scan's posts. None: no accounts are tested."""
        return keep_posts(plan, scan_id, text_ids)

    def follow_up(self, plan: Plan) -> LookRun | None:
        """Create the run that tests accounts. None: none are tested."""
        if plan.config.accounts is None:
            return None
        from scanner.looks.accounts.follow_up import AccountTests  # late: a worker needs no library of tables

        return AccountTests()
