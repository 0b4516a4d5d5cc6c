"""Keep the signers of this process, one for each folder of results."""

from pathlib import Path

from scanner.errors import Refused, ScanFailed
from scanner.registry import read_audit_secret
from scanner.signing.signer import Signer
from scanner.storage.locations import absolute
from schemas.config import ScanConfig

_registries: dict[str, str] = {}
_signers: dict[str, Signer | str] = {}  # a string is the reason why there is none


def open_results(config: ScanConfig, config_file: Path) -> str:
    """Return the folder or URI of a configuration's results. From now on this process signs and checks them.

    Raises:
        Refused: a URI has a password or options.
    """
    from scanner.scan_plan import results_of  # late: it loads kernels, which takes a second

    results = results_of(config, config_file)
    sign_with(results, absolute("registry", config.registry, config_file.absolute().parent))
    return results


def sign_with(results: str, registry: str) -> None:
    """Make this process sign its commits to results, and check the tables that it reads from them, from now on.

    Args:
        results: folder or URI, written as in all other calls.
        registry: folder or URI of the registry whose audit secret signs.
    """
    if _registries.get(results) != registry:
        _registries[results] = registry
        _signers.pop(results, None)


def registry_of(results: str) -> str | None:
    """Return the folder or URI of the registry whose audit secret checks results in this process. None: no check."""
    return None if signer_of(results) is None else _registries[results]


def signer_of(results: str) -> Signer | None:
    """Return the signer of results. None: there is none, for the reason that `unchecked` gives.

    Raises:
        Refused: the registry's record of signatures has another version.
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
    """Return why rows of results were read without a check of their signature.

    None: all tables that were read are signed.

    Call it after the rows were read.
    """
    if results not in _registries:
        return "no registry was named: name the scan's configuration instead of its results"
    signer = _signers.get(results)
    if isinstance(signer, str):
        return signer
    if signer is not None and signer.unsigned:
        unsigned = sorted(signer.unsigned)
        return f"{', '.join(unsigned)} {'is' if len(unsigned) == 1 else 'are'} not signed: run `brickscan sign`"
    if signer is not None and signer.off_record:
        names, is_kept = ", ".join(sorted(signer.off_record)), signer.record.is_kept()
        hint = "`brickscan sign` takes them as they are" if is_kept else "it cannot record signatures: make it writable"
        return f"the registry has no record of these results, so {names} may not be the newest: {hint}"
    return None


def unchecked_notes(results: str) -> list[str]:
    """Return a sentence on why the tables that were read were not checked (`unchecked`). Empty if they were."""
    why = unchecked(results)
    return [] if why is None else [f"signatures of tables were not checked: {why}"]


def use_signer(results: str, signer: Signer) -> None:
    """Make this process sign and check results with this signer from now on."""
    _signers[results] = signer


def keep_signatures(results: str) -> str | None:
    """Make the registry keep the newest signatures of this process's commits to results. Return why it could not."""
    signer = _signers.get(results)
    try:
        if isinstance(signer, Signer):
            signer.record.keep()
    except ScanFailed as error:
        return (
            f"{error}. Until it can be written, nothing shows whether tables of {results} were restored to an earlier "
            "state"
        )
    return None
