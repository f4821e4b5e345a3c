"""Output sizes of known operators for sizes that were not seen before."""
