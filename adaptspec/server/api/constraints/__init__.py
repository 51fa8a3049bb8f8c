"""What an answer must be: the fields that say so, and the grammars they ask for."""
