"""Evidence of several routings of one shape as evidence of one: a step before curves, crossovers and bands, which know
nothing of it.

A config stands for the mix where it was measured at every routing of it, and cannot be chosen where it lacks one.
It is as good as a finalist where all of its measurements are; of two such the mean is paired sample by sample where
they met in one session at each routing, and the worst where the same routing is the worst of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from numpy.typing import NDArray

from megatune_db.records import APART
from megatune_db.records import Stage
from megatune_kernels.space import Config
from megatune_planner.evidence import Expresses
from megatune_planner.evidence import Measured
from megatune_planner.evidence import ShapeEvidence
from megatune_planner.evidence import family
from megatune_planner.objective import Mix
from megatune_planner.objective import Objective
from megatune_planner.objective import mean_samples
from megatune_planner.ties import Candidate
from megatune_planner.ties import Samples
from megatune_planner.ties import best


def mixed(
    shapes: Sequence[ShapeEvidence], samples: Samples, objective: Objective, expresses: Mapping[str, Expresses]
) -> list[ShapeEvidence]:
    """The same evidence, that of several routings of a shape as one where the objective chooses over them.

    :param shapes: as ``evidence.gather`` found them with the same objective.
    :param samples: of the finalists, by id of the measurement.
    """
    found: list[ShapeEvidence] = []
    for _, group in groupby(shapes, lambda shape: family(shape.workload)):
        mine = {shape.workload.routing: shape for shape in group}
        mix = objective.mix(mine)
        if mix is None:
            found += mine.values()
        else:
            found.append(_mixed(mix, {name: mine[name] for name in mix.routings}, samples, expresses))
    return found


def _mixed(
    mix: Mix, shapes: Mapping[str, ShapeEvidence], samples: Samples, expresses: Mapping[str, Expresses]
) -> ShapeEvidence:
    first = next(iter(shapes.values()))
    joined: dict[int, NDArray[Any]] = {}
    at = {
        tokens: _at(mix, {name: shape.at.get(tokens) for name, shape in shapes.items()}, samples, joined, expresses)
        for tokens in sorted({tokens for shape in shapes.values() for tokens in shape.at})
    }
    return ShapeEvidence(first.workload, first.revision, at, mix=mix, alone=tuple(shapes.values()), joined=joined)


def _at(
    mix: Mix,
    measured: Mapping[str, Measured | None],
    samples: Samples,
    joined: dict[int, NDArray[Any]],
    expresses: Mapping[str, Expresses],
) -> Measured:
    """What was measured at one number of tokens, and why nothing can be said of it where that is so."""
    known = {name: here for name, here in measured.items() if here is not None}
    first = next(iter(known.values()))
    found = Measured(first.workload, first.provenance, first.revision, alone=known)
    lacking = [name for name in mix.routings if name not in known]
    provenances = {here.provenance for here in known.values()}
    old = [name for name, here in known.items() if here.outdated]
    if lacking:
        found.gaps += (f"not measured at routing {' and '.join(lacking)}",)
    elif len(provenances) > 1:
        what = ", ".join(f"{here.provenance} at {name}" for name, here in known.items())
        found.gaps += (f"{what}: figures of two clocks make no objective",)
    elif old:
        found.gaps += (f"measured with another revision of the kernels alone at {' and '.join(old)}: measure again",)
    else:
        parts = [here.candidates + list(here.expressible.values()) for here in known.values()]
        found.baselines += _joint(mix, [here.baselines for here in known.values()], samples, joined)
        found.searched_baselines += _joint(mix, [here.searched_baselines for here in known.values()], samples, joined)
        able = list(_joint(mix, parts, samples, joined))
        deciding = {candidate.config for here in known.values() for candidate in here.candidates}
        found.candidates += (candidate for candidate in able if candidate.config in deciding)
        found.gaps += tuple(_out_of_reach(known, {candidate.config for candidate in found.candidates}))
        for name, fits in expresses.items():
            fit = [each for each in able if fits(first.workload, Config.of(each.variant, each.params))]
            if fit:
                found.expressible[name] = best(fit)
    return found


def _out_of_reach(known: Mapping[str, Measured], choosable: set[str]) -> Iterator[str]:
    """Which routings have a fastest config that cannot be chosen, because others lack it."""
    for name, here in known.items():
        fastest = best(here.candidates) if here.candidates else None
        if fastest is not None and fastest.config not in choosable:
            lacking = [
                other
                for other, there in known.items()
                if all(candidate.config != fastest.config for candidate in there.candidates)
            ]
            yield (
                f"the fastest at routing {name} ({fastest.variant}) was not measured at {' and '.join(lacking)}, and "
                "cannot be chosen"
            )


def _joint(
    mix: Mix, parts: Sequence[Sequence[Candidate]], samples: Samples, joined: dict[int, NDArray[Any]]
) -> Iterator[Candidate]:
    """What was measured at every routing, the order being that of the first one."""
    # What an exporter can express may be a candidate as well; the first of the two is the finalist.
    by_config = [{candidate.config: candidate for candidate in reversed(mine)} for mine in parts]
    for config in dict.fromkeys(candidate.config for candidate in parts[0]):
        if all(config in mine for mine in by_config):
            found = join(mix, [mine[config] for mine in by_config])
            if mix.kind == "mean" and found.stage is Stage.FINAL:
                arrays = [samples.get(candidate.measurement_id) for candidate in found.behind]
                if not any(each is None for each in arrays):
                    joined[found.measurement_id] = mean_samples(mix, [each for each in arrays if each is not None])
            elif found.measurement_id in samples:
                joined[found.measurement_id] = samples[found.measurement_id]
            yield found


def join(mix: Mix, parts: Sequence[Candidate]) -> Candidate:
    """One config of all routings, in the order of the mix. Its interval holds whatever its parts' intervals hold."""
    names = mix.routings
    medians = {name: each.median_us for name, each in zip(names, parts, strict=True)}
    stands = names.index(mix.slowest(medians)) if mix.kind == "worst" else 0
    whole = [each for each in parts if each.stage is Stage.FINAL]
    final = len(whole) == len(parts)
    sessions = [f"{each.session} at {name}" for name, each in zip(names, parts, strict=True)]
    session = sessions[stands] if mix.kind == "worst" else " and ".join(sessions)
    if any(each.session.startswith(APART) for each in parts) and not session.startswith(APART):
        session = f"{APART}{session}"
    return replace(
        parts[stands],
        stage=Stage.FINAL if final else Stage.SEARCH,
        session=session if final else "",
        median_us=mix.of(medians),
        low_us=mix.of({name: each.low_us for name, each in zip(names, parts, strict=True)}),
        high_us=mix.of({name: each.high_us for name, each in zip(names, parts, strict=True)}),
        behind=tuple(parts),
    )
