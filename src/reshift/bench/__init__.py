"""``reshift bench``: methods × data sets × seeds, one JSON file per result, and the tables and figures made of them."""
