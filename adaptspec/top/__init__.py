"""`adaptspec top`: what a server does now, in a terminal. A client of its live feed."""
