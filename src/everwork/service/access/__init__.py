"""Who may do what: principals, API keys, sessions, the audit log."""
