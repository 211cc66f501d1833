"""How people see and decide: the one command, and pages over named queries and planner functions."""
