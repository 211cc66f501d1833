"""Tables that can be downloaded."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

Row = Mapping[str, Any]


def table(
    name: str, rows: Sequence[Row], *, empty: str, columns: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """A table with a button that downloads it as CSV; ``empty`` as a line where there are no rows.

    :param name: of the file, and unique on the page.
    :param columns: Streamlit's column configuration, by heading.
    :param options: of ``st.dataframe``, e.g. ``on_select``, whose state is returned.
    """
    if not rows:
        st.caption(empty)
        return None
    shown = st.dataframe(
        list(rows),
        hide_index=True,
        column_config=dict(columns or {}),
        # What is not known is an empty cell, not the word None.
        placeholder="",
        key=f"table-{name}",
        **options,
    )
    st.download_button(
        "Download CSV",
        partial(csv_text, rows),
        file_name=f"{name}.csv",
        mime="text/csv",
        key=f"download-{name}",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )
    return shown


def folded_table(
    label: str, name: str, rows: Callable[[], Sequence[Row]], *, empty: str, columns: Mapping[str, Any] | None = None
) -> None:
    """A table under a line that opens it. Until then its rows are neither made nor sent: that keeps pages quick."""
    fold = st.expander(label, key=f"fold-{name}", on_change="rerun")
    if fold.open:
        with fold:
            table(name, rows(), empty=empty, columns=columns)


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV with a heading; spreadsheets take nothing in it for a formula."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(_cell, headings))
    writer.writerows([_cell(row.get(heading)) for heading in headings] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value
