"""DICOM out: the mask as a segmentation, the map as a parametric map, overlays as secondary captures, findings as a report.

All of them refer to the images they were made from and belong to their study, so a PACS shows them beside the original. They
carry the patient and study modules, as DICOM demands, but not the source's equipment, station and institution; file names and
errors carry nothing of the patient. A case gets all of its files or none. Needs the extra ``dicom``.
"""
