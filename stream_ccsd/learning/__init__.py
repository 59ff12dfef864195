"""What becomes of verdicts: lessons, each a pure function of a model, evidence as it was scored, and verdicts.

``schedule`` says when, ``rows`` what is learnt from, ``notebook`` what is known of it, ``records`` and ``fraud_law``
count, ``weights`` and ``trees`` weigh, and ``learner`` puts the next model together.
"""
