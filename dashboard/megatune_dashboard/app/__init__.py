"""The Streamlit application: pages over named queries and planner functions."""
