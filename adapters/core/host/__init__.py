"""The realization on the host: numpy for the states, torch or numpy for the logits."""
