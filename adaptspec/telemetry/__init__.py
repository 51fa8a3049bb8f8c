"""One event stream of an engine, and its sinks: request log, metrics, live feed, journal and traces."""
