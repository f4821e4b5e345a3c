"""What becomes of a rank that dies or does not answer, and who tells: beside the job, not in it."""
