"""Define the look at levels for a scan."""

from collections.abc import Callable, Sequence
from functools import partial

from scanner.detection.rows import TextIds
from scanner.input.shards import Shard
from scanner.looks.levels.token_levels import model_pass_of
from scanner.looks.look import Keeper, LookEstimate, LookRun
from scanner.scan_plan import Plan
from schemas.words import LEVELS


class Levels:
    """Has a model read texts once more when all are committed, and scores them by levels."""

    name = LEVELS
    section = "levels"

    def check(self, plan: Plan) -> Callable[[Plan, Sequence[Shard]], LookEstimate] | None:
        """Pin the model, and return a function that estimates its reading. None: no model is configured."""
        pinned = model_pass_of(plan)
        if pinned is None:
            return None
        from scanner.looks.levels.follow_up import estimate_reading  # late: a worker needs no library of tables

        return partial(estimate_reading, pinned)

    def tables(self, plan: Plan) -> Sequence[str]:
        """Return no name: workers of a scan fill no table for it."""
        del plan
        return []

    def keeper(self, plan: Plan, scan_id: str, text_ids: TextIds) -> Keeper | None:
        """Keep nothing: texts are read again."""
        del plan, scan_id, text_ids
        return None

    def follow_up(self, plan: Plan) -> LookRun | None:
        """Pin the model, and create the run that reads with it. None: no model is configured.

        Raises:
            Refused: as `model_pass_of`.
        """
        pinned = model_pass_of(plan)
        if pinned is None:
            return None
        from scanner.looks.levels.follow_up import ModelPass  # late: a worker needs no library of tables

        return ModelPass(pinned)
