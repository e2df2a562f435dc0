"""Pages and figures of a query for a browser: the live page, reports, and the server of both."""
