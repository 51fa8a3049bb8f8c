"""Stop rules: after each drafted token, whether a row drafts one more. They decide no depths."""
