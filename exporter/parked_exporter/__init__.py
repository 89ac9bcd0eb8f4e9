"""The sidecar: what the ledger holds, on /metrics, and the schedule that acts on it."""
