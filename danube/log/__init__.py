"""The topic log: journal and table behind append, read, plan, stage and commit."""
