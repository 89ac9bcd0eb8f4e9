"""A local server that speaks the Gemini REST API and fails on demand: for tests, demos, and trying things out."""

from parked.simulator.record import Call
from parked.simulator.replies import Reply
from parked.simulator.request import Request
from parked.simulator.server import Rule, Simulator, serve

__all__ = ["Call", "Reply", "Request", "Rule", "Simulator", "serve"]
