"""The compiled steps of an event: an account goes in, scores and a decision come out, the account is updated."""
