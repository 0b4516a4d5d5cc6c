"""Writing the texts of a unit with a local model. Imports torch: import it late."""

from scanner.evaluation.units import WritingUnit
from scanner.generation import Completion, LocalModel, Sampling, complete


def write_texts(model: LocalModel, unit: WritingUnit) -> list[Completion]:
    """Complete the prompts of a unit, all tokens of the vocabulary allowed but for top-p (top-k is off).

    Raises:
        Refused: a prompt without tokens, or one too long for the model.
    """
    setting = unit.setting
    sampling = Sampling(
        max_new_tokens=setting.max_new_tokens,
        temperature=setting.temperature,
        top_k=0,
        top_p=setting.top_p,
        delta=Sampling.delta if setting.delta is None else setting.delta,
    )
    return complete(model, unit.prompts, sampling, unit.seed, unit.watermarks() or None, unit.messages)
