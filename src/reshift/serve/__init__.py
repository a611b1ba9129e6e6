"""``reshift serve``: a page and a REST API over the same scoring as the command line (extra ``serve``).

The server process takes uploads and answers requests; it imports no torch. Reader processes open what users send and draw what
the page shows. One worker process per device scores.
"""
