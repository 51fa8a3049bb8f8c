"""The engine over recorded traffic: tapes, machines, scenarios, and rounds that run no model."""
