"""What each page shows, as plain values: the same that its exports hold. Looks are in the templates."""
