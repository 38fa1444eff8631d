"""Rules about text: a vocabulary's bytes, and automata over bytes times the tokens."""
