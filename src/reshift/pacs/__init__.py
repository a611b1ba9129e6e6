"""Beside a PACS: fetch studies or receive them, score every series, and send the results back (extra ``pacs``)."""
