"""Page store + vocabulary -> dataset -> checkpoints."""
