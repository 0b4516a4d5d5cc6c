"""The n-grams that a scan left out, for whoever computes its verdicts again."""

from scanner.detection.filtering import NO_FILTER, Filter
from scanner.detection.published import TextIds
from scanner.errors import Refused
from scanner.evidence.case import Case
from scanner.registry import read_secret
from scanner.results.filters import open_filter
from schemas.registry import Registry


def filter_of(results: str, folder: str, registry: Registry, case: Case) -> Filter:
    """The filter under which a verdict was given; none where its scan did not end, or had none.

    Args:
        results: folder or URI.
        folder: of the registry.
        registry: the registry.
        case: the verdict and its scan.

    Raises:
        Refused: the filter is gone, or the registry has no audit secret, or another; SecretError.
    """
    sha256 = (case.scan or {}).get("filter_sha256")
    if sha256 is None:
        return NO_FILTER
    return open_filter(results, sha256, text_ids_of(folder, registry).ngram_secret())


def text_ids_of(folder: str, registry: Registry) -> TextIds:
    """Digests under the audit secret of a registry. Raises Refused: it has none; SecretError."""
    if registry.audit_secret is None:
        raise Refused(f"registry {folder!r} has no audit secret, which filters and digests of texts need; restore it")
    return TextIds(read_secret(registry.audit_secret, folder))
