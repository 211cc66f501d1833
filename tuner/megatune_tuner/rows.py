"""Targets, workloads, configs and artifacts as rows of the database. Whoever calls commits."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_kernels.target import Target


def put_target(session: Session, target: Target) -> int:
    """The id of what is measured on."""
    return store.put_target(session, digest=target.digest, **target.to_dict())


def put_workload(session: Session, workload: Workload, facts: Mapping[str, float] | None = None) -> int:
    """The id of the workload.

    :param facts: what a recording says of it beside its key; None: what its operator does, where that can be said here.
    """
    known = dict(facts) if facts else facts_of(workload)
    return store.put_workload(
        session, digest=workload.digest, shape=workload.shape, **workload.to_dict(), facts=known or None
    )


def facts_of(workload: Workload) -> dict[str, float]:
    """What the operator says of a workload beside its key; nothing where it is not installed, or needs what is not
    here."""
    tuned = operators().get(workload.operator)
    try:
        return {} if tuned is None else tuned.facts(workload)
    except MegatuneError:
        return {}


def put_config(session: Session, workload: Workload, config: Config, *, changes_bits: bool | None = None) -> int:
    """The id of the config.

    :param changes_bits: whether its parameters can change the bits of results; None: not known.
    """
    return store.put_config(
        session,
        digest=config.digest,
        operator=workload.operator,
        variant=config.variant,
        params=config.params,
        changes_bits=changes_bits,
    )


def put_artifact(session: Session, artifact: Artifact, target: Target) -> int:
    """The id of what is worth knowing of an artifact that is measured on the target."""
    return store.put_artifact(
        session,
        key=artifact.key,
        arch=artifact.arch,
        entry=artifact.entry,
        registers=artifact.registers,
        local_bytes=artifact.local_bytes,
        cubin_bytes=len(artifact.cubin),
        dsl=target.toolchain.dsl,
    )
