"""A trained bundle at work: load, calibrate, predict, and write scores, heat-maps, overlays and DICOM.

May import methods, kernels, system and data; needs no training code.
"""
