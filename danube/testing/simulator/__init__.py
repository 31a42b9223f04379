"""Deterministic, seeded simulation of Danube's storage: one thread, one seed, any fault.

Each run has three parts that are kept apart: what we do (``*_run``), what we believe
(``*_belief``), and what must hold, which raises ``Violation``. A failing seed replays the same run:
``python -m danube.testing.simulator --seed N -v``.
"""
