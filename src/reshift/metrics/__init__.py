"""Every figure of an evaluation, in numpy: exact over images, streaming over pixels, with intervals and paired tests."""
