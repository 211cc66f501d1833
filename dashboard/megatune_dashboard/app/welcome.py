"""What is shown while there is nothing to see: how to begin."""

from __future__ import annotations

import shlex

import streamlit as st

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.text import plain
from megatune_db import queries

LOOK_S = 2
"""Seconds between looks at whether something has begun."""


def welcome(context: Context) -> None:
    """How to begin, where no campaign has run into the database yet; the page changes as soon as one begins."""
    database = shlex.quote(str(context.location))
    st.title("Nothing is measured yet")
    st.write(
        f"There is no campaign in {plain(context.location)}. Start with the recorded one that comes with Megatune: it "
        "needs no GPU, takes less than two minutes, and ends with a plan. This page shows it as soon as it begins."
    )
    st.code(f"megatune quickstart --db {database}", language="sh")
    st.write("Or measure your own model on your own GPU:")
    st.code(f"megatune doctor\nmegatune run CAMPAIGN.toml --db {database}", language="sh")
    st.fragment(_look, run_every=LOOK_S)(context)


def _look(context: Context) -> None:
    if context.source.database() is not None and context.read(queries.campaign_names):
        st.rerun()
