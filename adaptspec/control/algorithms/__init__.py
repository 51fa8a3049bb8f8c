"""Algorithms that choose depths: each is a class, and a spec that policy files name it by. `registry` lists them."""
