"""The experience store: what was evaluated, so that nothing is evaluated twice and a new model starts from old ones.

Nothing is imported here: `agent.experience.records` is free of SQLAlchemy, and only `agent.experience.store` needs it.
"""
