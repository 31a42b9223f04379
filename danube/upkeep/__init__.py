"""What keeps tables in shape on a schedule: retention, Delta checkpoints, clean-up, verify.

Plans are pure functions; what they need to know of cursors comes as callables.
"""
