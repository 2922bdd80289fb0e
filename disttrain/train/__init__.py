"""Training: the loop, and what it is made of. Read `trainer.py` from the top."""
