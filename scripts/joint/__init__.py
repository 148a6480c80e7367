"""How the shipped models learn: two models, one pair of eyes, two data sets. `scripts/train_joint.py` runs it."""
