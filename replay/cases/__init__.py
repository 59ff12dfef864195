"""What people do about alerts: the audit log, verdicts, and cases made of both."""
