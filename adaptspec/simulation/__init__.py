"""The engine over recorded traffic: tapes, scenarios, what machines cost, and rounds that take no model."""
