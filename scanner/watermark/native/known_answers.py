"""Compare known answers of the native watermark: primitives, streams, draws and whole documents (SPEC §5).

Cases of version 3 have a seed key or a field `version`. Searches, trees of seeds and claims exist only in version 3
(SPEC_3 §7).
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from scanner.watermark.format import Case, Pairs, Watermark
from scanner.watermark.native import gumbel, secret, step_draws, steps, streams, tree
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.native.keyed import terms_of
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel, Version3LogGumbel, Version3Mark
from scanner.watermark.positions import Positions, Tokens, batch_tokens, positions_where, scored_positions
from scanner.watermark.rule import log10_p_of, search


def _chacha8(case: Case) -> Pairs:
    block = streams.chacha8_block(np.array(case["key"], np.uint32), case["counter"], case["nonce"])
    yield "block", case["block"], block.tolist()


def _streams(case: Case) -> Pairs:
    if "seed_key" in case:
        yield from _streams_of_seeds(case)
        return
    key, label, window = bytes.fromhex(case["secret"]), case["label"], np.array(case["window"], np.uint32)
    sub_keys = secret.derive(key, label)
    nonces = streams.nonces_of_windows(sub_keys, window[None, :])
    nonce = int(nonces[0])
    yield "commitment", case["commitment"], secret.commitment(key, label).hex()
    yield "chacha_key", case["chacha_key"], sub_keys.chacha.tolist()
    yield "sip_key", case["sip_key"], sub_keys.sip.astype("<u8").tobytes().hex()
    yield "nonce", case["nonce"], nonce
    for word in case["words"]:
        place = {name: word[name] for name in ("planes", "plane", "i")}
        yield f"word {place}", word["word"], streams.stream_word(sub_keys, nonce, **place)


def _streams_of_seeds(case: Case) -> Pairs:
    """Compare a step of version 3, from the label to its draws."""
    key, label, window = bytes.fromhex(case["secret"]), case["label"], np.array([case["window"]], np.uint32)
    parameters = dict(part.split("=") for part in label.split(";")[1:])
    seeds, in_groups = int(parameters["seeds"]), "groups" in parameters
    seed_key, window_key = secret.derive_seed_key(key, label).words, secret.window_key(window.shape[1], seeds)
    beacon = np.frombuffer(bytes.fromhex(case["beacon"]), "<u4").astype(np.uint32)
    hashes = steps.hash_windows(window_key, window)
    whole = np.zeros(1, np.int64), np.array([0, 1], np.int64)
    step_key = steps.step_keys(steps.SeedKeys(seed_key[None], beacon[None], seeds), *whole, hashes)
    second = int(hashes.seconds[0])
    added = beacon ^ np.array([second & 0xFFFFFFFF, second >> 32, *[0] * 6], np.uint32)
    yield "commitment", case["commitment"], secret.commitment(key, label, 3).hex()
    yield "seed_key", case["seed_key"], seed_key.tolist()
    yield "window_key", case["window_key"], window_key.astype("<u8").tobytes().hex()
    yield "nonce", case["nonce"], int(hashes.nonces[0])
    yield "second", case["second"], second
    yield "bucket", case["bucket"], int(steps.buckets_of(hashes.nonces, seeds)[0])
    yield "seed", case["seed"], (step_key[:, 0] ^ added).astype("<u4").tobytes().hex()
    yield "step_key", case["step_key"], step_key[:, 0].tolist()
    yield "group_step", case["group_step"], in_groups and bool(steps.is_group_step(step_key)[0])
    for group, first_block in (("words", 0), ("rough_words", 2**63)):
        for word in case[group]:
            planes, plane, i = word.get("planes", 8), word["plane"], word["i"]
            counter, row = divmod(i, 16 // planes)
            block = streams.chacha8_block(step_key[:, 0].copy(), counter + first_block, int(hashes.nonces[0]))
            yield f"{group} {planes} {plane} {i}", word["word"], int(block[plane * (16 // planes) + row])
    for entry in (*case.get("green", []), *case.get("draws", [])):
        token, number = divmod(entry["j"], 2**32)
        step = steps.Steps(np.array([token], np.uint32), hashes.nonces, step_key, whole[1])
        if "green" in entry:
            rule = secret.rule_of(Fraction(parameters["gamma"]))
            green = step_draws.greens_of(step, np.array([number]), rule)
            yield f"green {entry['j']}", entry["green"], bool(green[0])
            continue
        draw = int(step_draws.draws_of(step, np.array([number]), in_groups)[0])
        yield f"draw {entry['j']}", entry["word"], draw
        if in_groups:
            yield f"leading ones {entry['j']}", entry["leading_ones"], 8 - (~draw >> 24 & 255).bit_length()


def _draws(case: Case) -> Pairs:
    draw = np.array([case["word"]], np.uint32)
    yield "gumbel", case["gumbel"], float(terms_of(draw, unweighted=False)[0])
    yield "log", case["log"], float(terms_of(draw, unweighted=True)[0])
    yield "sampling_minus_ln_r", case["sampling_minus_ln_r"], float(gumbel.minus_ln_r(draw)[0])


def _documents(case: Case) -> Pairs:
    mark, tokens, positions = _scored(case)
    score = mark.score(tokens, positions, case["message"])
    yield "scored", case["scored"], int(positions.scored[0])
    yield "score", *_scores(case["score"], score[0])
    if isinstance(mark, Version3Mark):
        yield "scored_group", case["scored_group"], int(mark.group_steps(tokens, positions).sum())
        group_score = mark.parts(tokens, positions, case["message"])[0][0]
        yield "score_group", *_scores(case["score_group"], group_score)
    yield "log10_p", case["log10_p"], float(log10_p_of(mark.law, score, positions.scored)[0])


def _searches(case: Case) -> Pairs:
    mark, tokens, positions = _scored(case)
    if not isinstance(mark, Version3Mark) or mark.groups is None:
        raise ValueError("searches are only for version 3 with groups")
    findings = search(mark, tokens, positions, mark.groups**2)
    has_message = findings.message[0] >= 0
    yield "scored", case["scored"], int(positions.scored[0])
    yield "scored_group", case["scored_group"], int(mark.group_steps(tokens, positions).sum())
    yield (
        "messages",
        [candidate["message"] for candidate in case["candidates"]],
        findings.message[0][has_message].tolist(),
    )
    for i, candidate in enumerate(case["candidates"]):
        group_score = mark.parts(tokens, positions, candidate["message"])[0][0]
        yield f"score of candidate {i}", float(candidate["score"]), float(findings.score[0, i])
        yield f"score_group of candidate {i}", *_scores(candidate["score_group"], group_score)
        for name, log10_p in (
            ("", findings.log10_p),
            ("_all", findings.log10_p_global),
            ("_user", findings.log10_p_own),
        ):
            yield f"log10_p{name} of candidate {i}", candidate[f"log10_p{name}"], float(log10_p[0, i])


def _trees(case: Case) -> Pairs:
    key = secret.derive_seed_key(bytes.fromhex(case["secret"]), case["label"]).words
    kept = tree.grow_tree(key, case["seeds"])
    yield "root", case["root"], tree.root_of(kept).hex()
    beacon = tree.beacon_of(case["record"].encode(), bytes.fromhex(case["beacon_value"]))
    yield "beacon", case["beacon"], beacon.hex()
    for expected in case["shown"]:
        (shown,) = tree.show_seeds(key, case["seeds"], kept, [expected["bucket"]])
        yield f"seed of bucket {shown.bucket}", expected["seed"], shown.seed.hex()
        yield f"path of bucket {shown.bucket}", expected["path"], [node.hex() for node in shown.path]
        yield f"root by bucket {shown.bucket}", case["root"], tree.root_by(shown).hex()


def _claims(case: Case) -> Pairs:
    from scanner.watermark.native import claim  # late: of these, only claims need mpmath

    gamma = Fraction(case["gamma"]) if "gamma" in case else None
    label = secret.label(f"{case['method']}-v3", case["window"], gamma, case["groups"], case["seeds"])
    key = secret.derive_seed_key(bytes.fromhex(case["secret"]), label).words
    buckets = claim.claimed_positions(case["tokens"], label, case["most"]).buckets.tolist()
    seeds = {bucket: tree.seed_of(key, bucket) for bucket in buckets}
    before = [bytes.fromhex(leaf) for leaf in case["shown_before"]]
    score = claim.score_claim(
        case["tokens"], case["message"], label, bytes.fromhex(case["beacon"]), seeds, before, case["most"]
    )
    yield "scored", case["scored"], score.scored
    yield "score", case["score"], float(score.score)
    yield "scored_user", case["scored_user"], score.scored_user
    yield "score_user", case["score_user"], float(score.score_user)
    yield "shows", case["shows"], [leaf.hex() for leaf in score.shows]
    yield "log10_p", case["log10_p"], score.log10_p
    yield "log10_p_user", case["log10_p_user"], score.log10_p_user


def _scores(expected: float | None, computed: np.generic) -> tuple[float | None, float]:
    """Return both, for comparison. A count may be written as a real number, 5.0, but is compared exactly."""
    if isinstance(computed, np.integer) and isinstance(expected, float) and expected.is_integer():
        expected = int(expected)
    return expected, computed.item()


def _scored(case: Case) -> tuple[Watermark, Tokens, Positions]:
    """Return the watermark of a case of `documents` or `searches`, its tokens and the scored positions.

    Positions whose bucket is shown are left out (SPEC_3 §4).
    """
    mark, tokens = method_of(case), batch_tokens([case["tokens"]])
    positions = scored_positions(tokens, case["window"], case["dedup"])
    if isinstance(mark, Version3Mark):
        is_shown = np.isin(mark.buckets(tokens, positions), np.array(case["shown"], np.int64))
        positions = positions_where(positions, ~is_shown)
    return mark, tokens, positions


def method_of(case: Case) -> Watermark:
    """Return the watermark of a case of `documents` or `searches`, under its secret."""
    name, key, window = case["method"], bytes.fromhex(case["secret"]), case["window"]
    if case.get("version", 1) == 3:
        parameters = case["groups"], case["seeds"], bytes.fromhex(case["beacon"])
        if name == "greenlist":
            return Version3GreenList(key, window, Fraction(case["gamma"]), *parameters)
        return {"gumbel": Version3Gumbel, "gumbel-log": Version3LogGumbel}[name](key, window, *parameters)
    if name == "greenlist":
        return GreenList(key, window, Fraction(case["gamma"]))
    return {"gumbel": gumbel.Gumbel, "gumbel-log": gumbel.LogGumbel}[name](key, window)


GROUPS: dict[str, Callable[[Case], Pairs]] = {
    "chacha8": _chacha8,
    "streams": _streams,
    "draws": _draws,
    "documents": _documents,
    "searches": _searches,
    "trees": _trees,
    "claims": _claims,
}
"""Comparisons by the group's name in known_answers.json and known_answers_3.json."""
