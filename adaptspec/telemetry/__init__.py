"""One store of requests and rounds, and all that reads it: metrics, earnings, live feed, journal and traces."""
