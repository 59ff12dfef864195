"""Events, compiled: an account goes in, scores and a decision come out, and the account is updated."""
