"""Learning from verdicts: a model update is a pure function of a model, evidence as it was scored, and verdicts.

``schedule`` says when a model is updated. ``features`` are what is learnt from, and ``label_buffer`` what is known of
them. ``fraud_rates`` counts frauds by value and on the axes of numbers. ``logistic`` and ``trees`` fit weights and
trees, and ``selection`` chooses between them. ``alert_rates`` calibrates where only alerts have verdicts. ``reviewers``
compares those who give verdicts. ``adaptation`` lets the densities of normal transactions follow the stream.
``learner`` puts the next model together.
"""
