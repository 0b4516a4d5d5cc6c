"""The base of our processors, which serve one batch of `model.generate` whose rows stay in place until it ends."""

from typing import NoReturn

from transformers import LogitsProcessor

from scanner.errors import Refused


class OneBatch(LogitsProcessor):
    """Base of the processors. Transformers' continuous batching asks each whether it can be used, and is refused."""

    @property
    def supports_continuous_batching(self) -> NoReturn:  # type: ignore[override]
        """Refuse when transformers asks, before anything is generated.

        An answer of no would have the mark dropped, and no answer would have it misplaced.

        Raises:
            Refused: always.
        """
        raise Refused(
            f"{type(self).__name__}: continuous batching moves requests between rows, and the mark of one would go to "
            "another; call model.generate on whole batches, or serve the model with brickscan-vllm"
        )
