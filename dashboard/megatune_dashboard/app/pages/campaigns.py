"""Campaigns: how far each has come."""

from __future__ import annotations

import streamlit as st

from megatune_dashboard.app.context import Context

TITLE = "Campaigns"
ICON = ":material/speed:"
PATH = "campaigns"


def page(context: Context) -> None:
    st.title("Campaigns")
