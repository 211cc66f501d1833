"""Commits measurements one by one and prints each id after its commit, until it is killed."""

from __future__ import annotations

import itertools
import sys

import optuna
from db_examples import measured
from db_examples import put_examples

from megatune_db import store
from megatune_db.records import Stage
from megatune_db.session import open_database


def main(path: str, start: int) -> None:
    """Number the sessions from ``start``."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with open_database(path) as database, database.writer_lock():
        study = optuna.create_study(storage=database.optuna_storage(), study_name="first", load_if_exists=True)
        with database.session() as session:
            put_examples(session)
        for number in itertools.count(start):
            trial = study.ask()
            record = measured(0, 0, samples_us=(float(number),) * 200, stage=Stage.FINAL, session=str(number))
            with database.session() as session:
                found = store.add_measurement(session, record)
            print(found, number, flush=True)
            study.tell(trial, 1.0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
