"""What the learning choosers share: arms, rewards, contexts, episodes. `bandit.Bandit` puts them together."""
