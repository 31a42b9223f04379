"""The ground floor: names, batches, frames, protocols, errors. Imports nothing of ours."""
