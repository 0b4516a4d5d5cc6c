"""The signers of this process, one for each folder of results."""

from pathlib import Path

from scanner.errors import Refused, ScanFailed
from scanner.registry import read_audit_secret
from scanner.signing.signer import Signer
from scanner.storage.locations import absolute
from schemas.config import ScanConfig

_registries: dict[str, str] = {}
_signers: dict[str, Signer | str] = {}  # or why there is none


def open_results(config: ScanConfig, config_file: Path) -> str:
    """Return the folder or URI of a configuration's results, which this process signs and checks from now on.

    Raises:
        Refused: a password or options in a URI.
    """
    from scanner.scan_plan import results_of  # it brings kernels, which take a second

    results = results_of(config, config_file)
    sign_with(results, absolute("registry", config.registry, config_file.absolute().parent))
    return results


def sign_with(results: str, registry: str) -> None:
    """Have this process sign what it commits to results, and check what it reads of them, from now on.

    Args:
        results: folder or URI, as all calls name it.
        registry: folder or URI of the registry whose audit secret signs.
    """
    if _registries.get(results) != registry:
        _registries[results] = registry
        _signers.pop(results, None)


def registry_of(results: str) -> str | None:
    """Return the folder or URI of the registry whose audit secret this process checks results with; None: none does."""
    return None if signer_of(results) is None else _registries[results]


def signer_of(results: str) -> Signer | None:
    """Return what signs and checks results; None: nothing does, for the reason that `unchecked` gives.

    Raises:
        Refused: what the registry keeps of signatures is of another version.
    """
    if results not in _registries:
        return None
    if results not in _signers:
        registry = _registries[results]
        try:
            secret = read_audit_secret(registry)
        except Refused as error:
            _signers[results] = str(error)
        else:
            _signers[results] = Signer(results, registry, secret)
    opened = _signers[results]
    return opened if isinstance(opened, Signer) else None


def unchecked(results: str) -> str | None:
    """Return why rows of results were read without a check of their signature; None: all that were read are signed.

    Call it after the rows were read.
    """
    if results not in _registries:
        return "no registry was named: name the scan's configuration instead of its results"
    signer = _signers.get(results)
    if isinstance(signer, str):
        return signer
    if signer is not None and signer.unsigned:
        return f"nobody signed {', '.join(sorted(signer.unsigned))}: `brickscan sign` does"
    if signer is not None and signer.off_record:
        names, is_kept = ", ".join(sorted(signer.off_record)), signer.record.is_kept()
        hint = "`brickscan sign` takes them as they are" if is_kept else "it keeps no signatures: let it be written"
        return f"the registry does not know {names} at this place, so they may not be the newest: {hint}"
    if signer is not None and signer.newer_elsewhere:
        names, places = ", ".join(sorted(signer.newer_elsewhere)), ", ".join(sorted({*signer.newer_elsewhere.values()}))
        hint = "name these, or let `brickscan sign` take what is here"
        return f"the registry knows newer states of {names} in {places}, such as a copy that went on: {hint}"
    return None


def unchecked_notes(results: str) -> list[str]:
    """Return a sentence on why nobody checked the tables that were read, as of `unchecked`; none where they were."""
    why = unchecked(results)
    return [] if why is None else [f"signatures of tables were not checked: {why}"]


def use_signer(results: str, signer: Signer) -> None:
    """Have this process sign and check results by this signer from now on."""
    _signers[results] = signer


def keep_signatures(results: str) -> str | None:
    """Have the registry keep the newest signatures of this process's commits to results. Return why it could not."""
    signer = _signers.get(results)
    try:
        if isinstance(signer, Signer):
            signer.record.keep()
    except ScanFailed as error:
        return f"{error}. Until it can be, nobody sees that tables of {results} were put back to an earlier state"
    return None
