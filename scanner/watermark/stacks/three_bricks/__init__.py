"""The marks of the code that came with the paper: a seed and a salt, green lists or Gumbel draws."""

from scanner.watermark.stacks.stack import CaseGroup, Stack
from scanner.watermark.stacks.three_bricks.format import ThreeBricksMarylandFormat, ThreeBricksOpenaiFormat

STACK = Stack(
    (ThreeBricksOpenaiFormat, ThreeBricksMarylandFormat),
    {
        "three_bricks_openai": CaseGroup(lambda case: str(case.get("method")).startswith("openai")),
        "three_bricks_maryland": CaseGroup(lambda case: str(case.get("method")).startswith("maryland")),
    },
)
