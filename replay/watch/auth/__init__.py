"""Authentication, browser sessions, middleware and rate limits of the page."""
