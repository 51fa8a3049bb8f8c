"""JSON schemas of clients, made fit for the grammar compiler."""
