"""DICOM: headers, pixels, geometry, series.

Imports the rest of data; pydicom is imported when it is needed.
"""
